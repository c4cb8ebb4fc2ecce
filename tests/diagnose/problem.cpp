#include "diagnose/problem.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::diagnose {
namespace {

enum Stream : std::uint64_t { of_q, of_k, of_v, of_dout, of_bias, of_sinks };

/// Random numbers times `size`, rounded to bf16.
Tensor<double> random_array(const Shape& shape, std::uint64_t seed, Stream stream, double size) {
  Tensor<double> array(shape);
  fill_random(array.view(), RandomFill{seed, stream});
  for (double& x : array.view().elements())
    x = static_cast<double>(static_cast<float>(Bf16(static_cast<float>(size * x))));
  return array;
}

/// All scores of a head near `level`, which its first column makes; the other columns are multiples of 1/4, so that a
/// score is exact in float.
void set_level(Tensor<double>& array, Index head, double first_column) {
  for (Index token = 0; token < array.shape().seq; ++token) {
    const std::span<double> row = array.view().row(0, head, token);
    for (double& x : row) x = std::round(4 * x) / 4;
    row[0] = first_column;
  }
}

void stretch(Tensor<double>& array, Index head, double factor) {
  for (Index token = 0; token < array.shape().seq; ++token)
    for (double& x : array.view().row(0, head, token)) x *= factor;
}

void enlarge_scores(Trial& problem) {
  for (Index head = 0; head + 3 < problem.the_case.heads; head += 4) {
    stretch(problem.q, head, 4);  // lse of shards differ by more than 89
    stretch(problem.k, head, 8);
    set_level(problem.q, head + 1, 200);  // near -10150
    set_level(problem.k, head + 1, -203);
    set_level(problem.q, head + 2, 16);  // near -120
    set_level(problem.k, head + 2, -30);
  }
}

/// A bias that hides the padding from all queries.
Tensor<double> hides(const DiagnoseCase& which) {
  Tensor<double> bias({1, 1, which.tokens, which.tokens});
  for (Index query = 0; query < which.tokens; ++query)
    for (Index key = 0; key < which.padding; ++key) bias.view()(0, 0, query, key) = negative_infinity<double>;
  return bias;
}

}  // namespace

double DiagnoseCase::scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }

Shape DiagnoseCase::shape_of(Array array) const {
  if (array == Array::lse) return q().per_row();
  return array == Array::dk || array == Array::dv ? kv() : q();
}

std::vector<DiagnoseCase> ladder(const JobShape& job) {
  // Heads that the ranks of Ulysses can share, and tokens that all placements can share out equally: of a rank another
  // number than of heads or of columns, so that the axes of its arrays can be told apart.
  DiagnoseCase full{.name = "full", .tests = "no mask"};
  full.heads = full.kv_heads = job.ulysses > 2 ? 2 * job.ulysses : 4;
  const Index part = Index{2} * job.ranks;
  full.tokens = (24 + part - 1) / part * part;
  while (full.tokens == full.heads * job.ranks || full.tokens == full.dim * job.ranks) full.tokens += part;
  std::vector<DiagnoseCase> cases{full};
  const auto add = [&](const char* name, const char* tests, bool causal) -> DiagnoseCase& {
    DiagnoseCase added = full;
    added.name = name;
    added.tests = tests;
    added.causal = causal;
    added.number = cases.size();
    cases.push_back(added);
    return cases.back();
  };
  add("causal", "a causal mask", true);
  add("gqa", "query heads that share KV heads; causal", true).kv_heads = full.heads / 2;
  add("window", "a sliding window; causal", true).window = 5;
  add("documents", "packed documents; causal", true).documents = {0, 5, 14, full.tokens};
  add("alibi", "the ALiBi bias; causal", true).alibi = true;
  add("bias", "a dense bias", false).bias = true;
  add("sinks", "a logit without a value in each head; causal", true).sinks = true;
  add("uneven", "a length that the ranks cannot share out equally", false).tokens -= 1;
  add("padding", "keys that no query sees", false).padding = 3;
  add("empty-rows", "queries that see no key; causal", true).padding = 3;
  add("large", "large scores, and scores far below zero; causal", true).large_scores = true;
  return cases;
}

Trial::Trial(const DiagnoseCase& which, const JobShape& ranks, std::uint64_t seed_of_arrays)
    : the_case(which), job(ranks), seed(seed_of_arrays) {
  const std::uint64_t mixed = mix(seed + which.number);
  // Scores have a standard deviation of 2.25: large enough for weights to differ, small enough for all keys to count.
  q = random_array(which.q(), mixed, of_q, 1.5);
  k = random_array(which.kv(), mixed, of_k, 1.5);
  v = random_array(which.kv(), mixed, of_v, 1);
  dout = random_array(which.q(), mixed, of_dout, 1);
  if (which.large_scores) enlarge_scores(*this);
  if (which.bias) bias = random_array({1, which.heads, which.tokens, which.tokens}, mixed, of_bias, 1);
  if (which.alibi) slopes = alibi_slopes(which.heads);
  if (which.sinks) {
    const Tensor<double> numbers = random_array({1, which.heads, 1, 1}, mixed, of_sinks, 1);
    for (const double number : numbers.view().elements()) sinks.push_back(1 + number);
  }
  find_right_results();
}

Scoring Trial::scoring() const {
  Scoring how;
  how.scale = the_case.scale();
  how.alibi_slopes = slopes;
  how.sinks = sinks;
  if (the_case.causal) how.mask = Mask::causal();
  if (the_case.window > 0) how.mask.left = the_case.window - 1;
  if (!the_case.documents.empty()) how.mask.documents = std::make_shared<const Documents>(the_case.documents);
  return how;
}

void Trial::find_right_results() {
  const Tensor<double> hidden = the_case.padding > 0 ? hides(the_case) : Tensor<double>();
  const View<const double> added = the_case.padding > 0 ? hidden.view() : bias.view();
  Reference forward = reference_forward(q, k, v, scoring(), added);
  ReferenceGradients gradients = reference_backward(q, k, v, dout, scoring(), added);
  right[Array::out] = std::move(forward.out);
  right[Array::lse] = std::move(forward.lse);
  right[Array::dq] = std::move(gradients.q);
  right[Array::dk] = std::move(gradients.k);
  right[Array::dv] = std::move(gradients.v);
}

}  // namespace ring_attention::diagnose
