#include "live/check.hpp"

#include "program/run/rows.hpp"
#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/reference.hpp"

namespace ring_attention::live {

void check(const Choice& choice, const Arrays& arrays, const Tell& tell) {
  const Index tokens = choice.q.seq, rows = choice.checked_queries();
  const TokenRanges some{{0, tokens / rows, rows}}, all = whole(tokens);
  const Scoring scoring = choice.shared(0).scoring;
  const auto at = [&](const TokenRanges& where, const char* name) {
    const Tensor<float>& array = arrays.at(name);
    return gather_rows<float>(array, 0, 0, array.shape().heads, positions(where));
  };
  const Tensor<double> q = at(some, "q"), k = at(all, "k"), v = at(all, "v");

  const Reference want = reference_forward(q, k, v, scoring, some);
  const auto rows_agree = [&](const char* name, const Tensor<double>& wanted, double value,
                              const RowErrors& errors, CompareOptions options) {
    const Tolerance bound = attention_tolerance<float>(tokens, want.max_abs_score, value);
    const Tensor<double> got = at(some, name);
    options.expect_zero = is_zero(wanted);
    const Comparison compared = compare(got, wanted, bound, options);
    tell(name, judged_by_rows(compared, got, wanted, errors, Precision::of<float>(), tokens), bound.absolute,
         rows);
  };
  rows_agree("out", want.out, want.max_abs_value, want.of_out, {});
  rows_agree("lse", want.lse, 1, want.of_lse, {.allow_negative_infinity = true});
  if (!choice.backward) return;

  ReferenceGradients gradients = reference_backward(q, k, v, at(some, "dout"), scoring, some);
  if (rows <
      tokens) {  // dK,dV of some keys are sums over all queries: the readable backward on the run's own out and lse
    const Tensor<double> keys = at(some, "k"), values = at(some, "v"), queries = at(all, "q"),
                         out = at(all, "out"), lse = at(all, "lse"), grad_out = at(all, "dout");
    gradients.k = Tensor<double>(keys.shape());
    gradients.v = Tensor<double>(keys.shape());
    BlockwiseBackward<double> engine(scoring, rows);
    engine.begin({queries, out, lse, grad_out, {}}, all);
    engine.accumulate({keys, values, some}, {gradients.k, gradients.v});
    gradients.magnitude_k *=
        static_cast<double>(tokens / rows);  // the other queries add terms, whose errors are not known
    gradients.magnitude_v *= static_cast<double>(tokens / rows);
    for (Tensor<double>* unknown :
         {&gradients.roundings_k, &gradients.roundings_v, &gradients.sizes.k, &gradients.sizes.v})
      *unknown = {};
  }
  const Index terms = tokens * choice.q.heads / choice.kv.heads;
  const auto agree = [&](const char* name, const Tensor<double>& wanted, double magnitude,
                         const GradientErrors& errors) {
    const Tolerance bound =
        gradient_tolerance<float>(terms, gradients.max_abs_score, magnitude, 0, errors.steps);
    const Tensor<double> got = at(wanted.shape().seq == tokens ? all : some, name);
    const Comparison compared = compare(got, wanted, bound, {.expect_zero = is_zero(wanted)});
    tell(name, judged_by_norm<float>(compared, bound.absolute, errors, 0, terms), bound.absolute,
         wanted.shape().seq);
  };
  agree("dq", gradients.q, gradients.magnitude_q,
        {.roundings = gradients.roundings_q, .sizes = gradients.sizes.q, .steps = gradients.steps_q});
  agree("dk", gradients.k, gradients.magnitude_k,
        {.roundings = gradients.roundings_k, .sizes = gradients.sizes.k, .steps = gradients.steps_k});
  agree("dv", gradients.v, gradients.magnitude_v,
        {.roundings = gradients.roundings_v, .sizes = gradients.sizes.v, .steps = gradients.steps_v});
}

}  // namespace ring_attention::live
