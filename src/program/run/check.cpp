#include "program/run/check.hpp"

#include <algorithm>

#include "program/run/check_keys.hpp"
#include "program/run/rows.hpp"
#include "ring_attention/attention/reference.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

/// Which of `rows` rows to compare.
std::vector<Index> chosen_rows(Index rows, Index tokens) {
  const Index wanted = checked_rows(rows, tokens);
  std::vector<Index> chosen;
  for (Index i = 0; i < wanted; ++i) chosen.push_back(wanted == 1 ? 0 : i * (rows - 1) / (wanted - 1));
  return chosen;
}

std::vector<Index> chosen(const std::vector<Index>& from, const std::vector<Index>& which) {
  std::vector<Index> some;
  some.reserve(which.size());
  for (const Index i : which) some.push_back(from[static_cast<std::size_t>(i)]);
  return some;
}

TokenRanges ranges_at(const std::vector<Index>& positions) {
  TokenRanges ranges;
  for (const Index position : positions) ranges.push_back({position, 1, 1});
  return ranges;
}

using KeyArrays =
    std::array<Tensor<double>, 8>;  // dk, dv, their roundings, sizes and inputs (ReferenceGradients)

/// The reference's results for all heads, and the sizes that tolerances need.
struct Wanted {
  Tensor<double> out, lse, dq, dbias;
  RowErrors of_out, of_lse;
  Tensor<double> roundings_q, roundings_bias, sizes_q, sizes_bias, inputs_q, inputs_bias;
  KeyArrays key_arrays;
  TermNumbers numbers, magnitudes;
  double max_abs_score = 0, max_abs_value = 0;
  double magnitude_q = 0, magnitude_k = 0, magnitude_v = 0, magnitude_bias = 0;
  double steps_q = 0, steps_k = 0, steps_v = 0;
};

/// Adds the numbers of the query heads from `head` on to those of all heads.
void add_heads(TermNumbers& sums, const TermNumbers& of_heads, Index head) {
  each_number(
      [&](const char*, std::span<double> sum, std::span<const double> part) {
        const auto first = sum.size() == part.size() ? 0 : static_cast<std::size_t>(head);
        for (std::size_t i = 0; i < part.size(); ++i) sum[first + i] += part[i];
      },
      sums, of_heads);
}

/// Fills `Wanted`, one KV head and the query heads that share it at a time.
template <class T>
class Check {
 public:
  Check(const Communicator& comm, const RunInput& input, const RankResults<T>& results, Activity& activity)
      : comm_(comm),
        input_(input),
        results_(results),
        activity_(activity),
        rows_(chosen_rows(count(results.query_ranges), input.q().seq)),
        keys_(results.key_ranges),
        group_(input.q().heads / input.kv().heads) {
    const Shape some = input.q().with_seq(static_cast<Index>(rows_.size()));
    want_.out = Tensor<double>(some.with_dim(input.kv().value_dim));
    want_.lse = Tensor<double>(some.per_row());
    want_.of_out = RowErrors(some.per_row());
    want_.of_lse = RowErrors(some.per_row());
    if (results.gradients == nullptr) return;
    want_.dq = Tensor<double>(some);
    want_.roundings_q = Tensor<double>(some.per_row());
    want_.sizes_q = Tensor<double>(some.per_row());
    if (has_inputs()) want_.inputs_q = Tensor<double>(some.per_row());
    KvShape keys(results.gradients->k.shape(), input.kv().value_dim);
    if (!has_every_row()) keys = keys.with_seq(std::ssize(keys_.rows));
    want_.key_arrays = arrays_of_keys(keys);
    for (const std::size_t i : {std::size_t{2}, std::size_t{3}})
      if (!has_every_row()) want_.key_arrays[i] = {};  // their roundings are not known
    const Shape bias = results.bias->shape().with_seq(std::min(some.seq, results.bias->shape().seq));
    want_.dbias = Tensor<double>(bias);
    want_.roundings_bias = Tensor<double>(bias);
    want_.sizes_bias = Tensor<double>(bias);
    if (has_inputs()) want_.inputs_bias = Tensor<double>(bias);
    want_.numbers = want_.magnitudes = input.scoring().zero_gradients();
  }

  [[nodiscard]] bool has_gradients() const { return results_.gradients != nullptr; }
  [[nodiscard]] bool has_every_row() const { return input_.q().seq <= check_all_rows_up_to; }
  /// Are dk and dv of some keys compared? A dense bias has no columns of some keys alone.
  [[nodiscard]] bool has_keys() const { return has_every_row() || !input_.bias(); }
  [[nodiscard]] const std::vector<Index>& rows() const { return rows_; }
  /// dk or dv of the keys that are compared.
  [[nodiscard]] Tensor<double> of_keys(const Tensor<T>& gradient) const;

  const Wanted& run() {
    for (Index b = 0; b < input_.q().batch; ++b)
      for (Index kv_head = 0; kv_head < input_.kv().heads; ++kv_head) {
        const Tensor<double> k = input_.template whole_head<T>(InputArray::k, b, kv_head);
        const Tensor<double> v = input_.template whole_head<T>(InputArray::v, b, kv_head);
        KeyArrays key_arrays;
        if (has_gradients() && has_every_row()) key_arrays = arrays_of_keys({k.shape(), v.shape().dim});
        std::array magnitudes{0.0, 0.0};  // of dk and dv: the rows of all ranks add up
        for (std::size_t first = 0; first < rows_.size(); first += chunk()) {
          check_rows(b, kv_head, first, k, v, key_arrays, magnitudes);
          activity_.beat();
        }
        if (!has_gradients() || !has_keys()) continue;
        if (has_every_row())
          add_over_ranks(b, kv_head, key_arrays, magnitudes);
        else
          sample_keys(b, kv_head, k, v);
      }
    if (has_gradients()) finish_shared_gradients();
    return want_;
  }

 private:
  [[nodiscard]] KeyArrays arrays_of_keys(const KvShape& keys) const {
    const Shape rows = keys.per_row();
    KeyArrays arrays{Tensor<double>(keys), Tensor<double>(keys.values())};
    for (std::size_t i = 2; i < (has_inputs() ? 8U : 6U); ++i) arrays[i] = Tensor<double>(rows);
    return arrays;
  }

  /// Were K and V rounded before the arithmetic?
  [[nodiscard]] bool has_inputs() const { return results_.kv_unit > 0; }

  /// Enough rows at a time to keep Eigen busy, few enough to keep the dense scores under about 64 MiB.
  [[nodiscard]] std::size_t chunk() const {
    return static_cast<std::size_t>(std::clamp<Index>((Index{8} << 20) / (input_.kv().seq * group_), 1, 512));
  }

  /// The scoring of the query heads that share a KV head.
  [[nodiscard]] Scoring scoring_of(Index b, Index kv_head) const {
    Scoring scoring = input_.scoring().of_heads({kv_head * group_, (kv_head + 1) * group_});
    scoring.dropout.first_batch += b;
    return scoring;
  }

  void check_rows(Index b, Index kv_head, std::size_t first, const Tensor<double>& k, const Tensor<double>& v,
                  KeyArrays& key_arrays, std::array<double, 2>& magnitudes) {
    const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<Index> some(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(chunk(), rows_.size() - first)));
    const TokenRanges where = ranges_at(chosen(positions(results_.query_ranges), some));
    const Index head = kv_head * group_;
    const Scoring scoring = scoring_of(b, kv_head);
    const Tensor<double> q = gather_rows<T>(*results_.q, b, head, group_, some);

    const Shape& whole_bias = results_.bias->shape();  // an extent of 1 broadcasts
    const Index bias_batch = std::min(b, whole_bias.batch - 1);
    const Index bias_head = whole_bias.heads == 1 ? 0 : head, bias_heads = whole_bias.heads == 1 ? 1 : group_;
    const Tensor<double> bias =
        whole_bias.size() > 0 ? gather_rows<T>((*results_.bias), bias_batch, bias_head, bias_heads, some)
                              : Tensor<double>();

    const Reference forward = reference_forward(q, k, v, scoring, where, bias, has_inputs());
    scatter_rows(forward.out, want_.out, b, head, static_cast<Index>(first));
    scatter_rows(forward.lse, want_.lse, b, head, static_cast<Index>(first));
    for (const auto& [part, all] :
         {std::pair(&forward.of_out, &want_.of_out), std::pair(&forward.of_lse, &want_.of_lse)})
      for (Tensor<double> RowErrors::* numbers :
           {&RowErrors::roundings, &RowErrors::inputs, &RowErrors::size})
        scatter_rows(part->*numbers, (all->*numbers).view(), b, head, static_cast<Index>(first));
    want_.max_abs_score = std::max(want_.max_abs_score, forward.max_abs_score);
    want_.max_abs_value = std::max(want_.max_abs_value, forward.max_abs_value);
    if (!has_gradients()) return;

    const Tensor<double> grad_out = gather_rows<T>(*results_.grad_out, b, head, group_, some);
    const ReferenceGradients backward =
        reference_backward(q, k, v, grad_out, scoring, where, bias, has_inputs());
    scatter_rows(backward.q, want_.dq, b, head, static_cast<Index>(first));
    scatter_rows(backward.roundings_q, want_.roundings_q, b, head, static_cast<Index>(first));
    scatter_rows(backward.sizes.q, want_.sizes_q, b, head, static_cast<Index>(first));
    if (has_inputs()) scatter_rows(backward.inputs.q, want_.inputs_q, b, head, static_cast<Index>(first));
    if (has_every_row()) {
      const std::array parts{&backward.k,           &backward.v,       &backward.roundings_k,
                             &backward.roundings_v, &backward.sizes.k, &backward.sizes.v,
                             &backward.inputs.k,    &backward.inputs.v};
      for (std::size_t i = 0; i < parts.size(); ++i)
        if (parts[i]->size() > 0) matrix(key_arrays[i].view(), 0, 0) += matrix(parts[i]->view(), 0, 0);
    }
    want_.magnitude_q = std::max(want_.magnitude_q, backward.magnitude_q);
    magnitudes[0] += backward.magnitude_k;
    magnitudes[1] += backward.magnitude_v;
    const auto add_bias = [&](const Tensor<double>& part, Tensor<double>& sum) {
      for (Index h = 0; h < bias_heads && bias.size() > 0; ++h)
        matrix(sum.view(), bias_batch, bias_head + h, static_cast<Index>(first), bias.shape().seq) +=
            matrix(part.view(), 0, h);
    };
    add_bias(backward.bias, want_.dbias);
    add_bias(backward.roundings_bias, want_.roundings_bias);
    add_bias(backward.sizes.bias, want_.sizes_bias);
    if (has_inputs()) add_bias(backward.inputs.bias, want_.inputs_bias);
    add_heads(want_.numbers, backward, head);
    add_heads(want_.magnitudes, backward.magnitudes, head);
    want_.magnitude_bias = std::max(want_.magnitude_bias, backward.magnitude_bias);
    want_.steps_q = std::max(want_.steps_q, backward.steps_q);
    want_.steps_k = std::max(want_.steps_k, backward.steps_k);
    want_.steps_v = std::max(want_.steps_v, backward.steps_v);
  }

  /// dbias sums over what broadcasts, a number over the rows of all ranks; so do the magnitudes.
  void finish_shared_gradients() {
    const Shape &bias = results_.bias->shape(), &q = input_.q();
    const Index shared = q.batch / bias.batch * (bias.heads == 1 ? input_.kv().heads : 1);
    want_.magnitude_bias *= static_cast<double>(shared);
    MpiAllToAll ranks(comm_);
    all_reduce(ranks, want_.numbers);
    all_reduce(ranks, want_.magnitudes);
  }

  /// dk and dv of one KV head are the sums over all rows, so over all ranks; this rank keeps its own keys.
  void add_over_ranks(Index b, Index kv_head, KeyArrays& key_arrays, std::array<double, 2>& magnitudes) {
    const std::vector<Index> keys = positions(results_.key_ranges);
    std::vector<double> sums;  // of all in one reduction
    const auto each = [&](const auto& use) {
      for (Tensor<double>& array : key_arrays) use(array.view().elements());
      use(std::span<double>(magnitudes));
    };
    each([&](std::span<double> part) { sums.insert(sums.end(), part.begin(), part.end()); });
    sum_over_ranks(comm_, std::span<double>(sums));
    auto next = sums.begin();
    each([&](std::span<double> part) {
      std::copy_n(next, part.size(), part.begin());
      next += std::ssize(part);
    });
    for (std::size_t i = 0; i < key_arrays.size(); ++i)
      if (key_arrays[i].size() > 0)
        scatter_rows(gather_rows<double>(key_arrays[i], 0, 0, 1, keys), want_.key_arrays[i], b, kv_head, 0);
    want_.magnitude_k = std::max(want_.magnitude_k, magnitudes[0]);
    want_.magnitude_v = std::max(want_.magnitude_v, magnitudes[1]);
  }

  /// dk and dv of some keys of each rank, one rank after the other.
  void sample_keys(Index b, Index kv_head, const Tensor<double>& k, const Tensor<double>& v) {
    const Interval heads{kv_head * group_, (kv_head + 1) * group_};
    const Tensor<double> none;
    for (int owner = 0; owner < comm_.size(); ++owner) {
      TokenRanges ranges = keys_.ranges;
      broadcast(comm_, ranges, owner);
      const std::vector<Index> at = positions(ranges);
      const Tensor<double> some_k = gather_rows<double>(k, 0, 0, 1, at),
                           some_v = gather_rows<double>(v, 0, 0, 1, at);
      const KeyGradients want = key_gradients(comm_, results_, scoring_of(b, kv_head), b, heads,
                                              {some_k, some_v, ranges}, activity_);
      want_.magnitude_k = std::max(want_.magnitude_k, want.magnitude_k);
      want_.magnitude_v = std::max(want_.magnitude_v, want.magnitude_v);
      if (owner != comm_.rank()) continue;
      const std::array parts{&want.k,       &want.v,       &none,          &none,
                             &want.sizes_k, &want.sizes_v, &want.inputs_k, &want.inputs_v};
      for (std::size_t i = 0; i < parts.size(); ++i)
        if (want_.key_arrays[i].size() > 0) scatter_rows(*parts[i], want_.key_arrays[i], b, kv_head, 0);
    }
  }

  const Communicator& comm_;
  const RunInput& input_;
  const RankResults<T>& results_;
  Activity& activity_;
  std::vector<Index> rows_;  // of this rank's queries, in memory order
  SampledKeys keys_;         // of this rank, where not all are compared
  Index group_;
  Wanted want_;
};

/// The rows of `array` that were checked.
template <class T>
Tensor<double> rows_of(const Tensor<T>& array, const std::vector<Index>& rows) {
  Tensor<double> some(array.shape().with_seq(static_cast<Index>(rows.size())));
  for (Index b = 0; b < array.shape().batch; ++b)
    for (Index h = 0; h < array.shape().heads; ++h)
      scatter_rows(gather_rows<T>(array, b, h, 1, rows), some, b, h, 0);
  return some;
}

template <class T>
Tensor<double> Check<T>::of_keys(const Tensor<T>& gradient) const {
  return has_every_row() ? converted<double>(gradient) : rows_of(gradient, keys_.rows);
}

/// Numbers of heads as an array of one row.
Tensor<double> heads(std::span<const double> numbers) {
  Tensor<double> array({1, std::ssize(numbers), 1, 1});
  std::ranges::copy(numbers, array.data());
  return array;
}

}  // namespace

template <class T>
void check_results(const Communicator& comm, const RunInput& input, const RankResults<T>& results,
                   RankReport& report, Activity& activity) {
  Check<T> check(comm, input, results, activity);
  const Wanted& want = check.run();
  const auto n = static_cast<Index>(check.rows().size());
  const Precision precision = Precision::of<T>(results.kv_unit);
  const auto enter_rows = [&](Result result, const Tensor<T>& all, const Tensor<double>& wanted, double value,
                              const RowErrors& errors, const CompareOptions& options) {
    const Tolerance tolerance =
        attention_tolerance<T>(input.kv().seq, want.max_abs_score, value, results.kv_unit);
    const Tensor<double> got = rows_of(all, check.rows());
    const Comparison compared = compare(got, wanted, tolerance, options);
    report.error(result) = {judged_by_rows(compared, got, wanted, errors, precision, input.kv().seq), n};
  };
  enter_rows(Result::out, results.forward->out, want.out, want.max_abs_value, want.of_out,
             {.expect_zero = is_zero(want.out)});
  enter_rows(Result::lse, results.forward->lse, want.lse, 1, want.of_lse,
             {.allow_negative_infinity = true, .expect_zero = is_zero(want.lse)});
  if (!check.has_gradients()) return;
  const Index terms = std::max(input.kv().seq, input.q().seq * input.q().heads / input.kv().heads);
  const double score_of_all =
      max_over_ranks(comm, want.max_abs_score);  // dk and dv are sums over the rows of all
  const auto enter = [&](Result result, const Tensor<double>& got, const Tensor<double>& wanted,
                         double magnitude, const GradientErrors& errors, Index columns = 0) {
    const auto tolerance = [&](double unit) {
      return gradient_tolerance<T>(
          terms, result == Result::dq || result == Result::dbias ? want.max_abs_score : score_of_all,
          magnitude, unit, errors.steps);
    };
    const Tolerance bound = tolerance(results.kv_unit);
    GradientErrors known = errors;
    known.element = tolerance(0).absolute;
    const Comparison compared = compare(got, wanted, bound, {.expect_zero = is_zero(wanted)});
    report.error(result) = {
        judged_by_norm<T>(compared, bound.absolute, known, results.kv_unit, terms, columns),
        wanted.shape().seq};
  };
  enter(Result::dq, rows_of(results.gradients->q, check.rows()), want.dq, want.magnitude_q,
        {want.roundings_q, want.sizes_q, want.inputs_q, want.steps_q});
  if (want.dbias.size() > 0)
    enter(Result::dbias, rows_of(results.gradients->bias, check.rows()), want.dbias, want.magnitude_bias,
          {want.roundings_bias, want.sizes_bias, want.inputs_bias, 1});
  if (!check.has_keys()) return;
  const auto& [dk, dv, roundings_k, roundings_v, sizes_k, sizes_v, inputs_k, inputs_v] = want.key_arrays;
  enter(Result::dk, check.of_keys(results.gradients->k), dk, want.magnitude_k,
        {roundings_k, sizes_k, inputs_k, max_over_ranks(comm, want.steps_k)});
  enter(Result::dv, check.of_keys(results.gradients->v), dv, want.magnitude_v,
        {roundings_v, sizes_v, inputs_v, max_over_ranks(comm, want.steps_v)}, input.q().dim);
  if (!check.has_every_row()) return;
  auto number = static_cast<int>(Result::numbers);
  each_number(
      [&](const char*, auto got, auto wanted, auto magnitudes) {
        const auto result = static_cast<Result>(number++);
        if (!wanted.empty())
          enter(result, heads(got), heads(wanted), std::ranges::max(magnitudes), {.steps = 1});
      },
      *results.gradients, want.numbers, want.magnitudes);
}

template void check_results(const Communicator&, const RunInput&, const RankResults<float>&, RankReport&,
                            Activity&);
template void check_results(const Communicator&, const RunInput&, const RankResults<double>&, RankReport&,
                            Activity&);

}  // namespace ring_attention
