#include "support/problem.hpp"

#include <cmath>

#include "ring_attention/core/bf16.hpp"

namespace ring_attention::test {

Case with_everything(std::pair<Index, Index> bias, const Scoring& scoring, double dropout) {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 71,
            .keys = 107,
            .dim = 12,
            .scoring = scoring,
            .bias_batch = bias.first,
            .bias_heads = bias.second};
  what.scoring.dropout = {.probability = dropout, .seed = 6, .layer = 1};
  what.scoring.sinks = {0.5, -1, negative_infinity<double>, 2};
  return what;
}

std::string to_string(const Case& c) {
  const Mask& mask = c.scoring.mask;
  const auto side = [](Index keys) { return keys == Mask::unlimited ? "all" : std::to_string(keys); };
  return "q " + to_string(c.q()) + ", k " + to_string(c.kv()) + ", block " + std::to_string(c.block) + ", " +
         name(c.kind) + ", scale " + std::to_string(c.scoring.scale) + ", mask left " + side(mask.left) +
         " right " + side(mask.right) + " offset " + std::to_string(mask.offset) +
         (mask.documents ? ", documents" : "") + (mask.sets ? ", " + mask.sets->text() : "") +
         (c.scoring.has_alibi() ? ", ALiBi" : "") + (c.bias() ? ", bias " + to_string(*c.bias()) : "") +
         (c.scoring.sinks.empty() ? "" : ", sinks") +
         (c.scoring.caps() ? ", softcap " + std::to_string(c.scoring.softcap) : "") + ", dropout " +
         std::to_string(c.scoring.dropout.probability) + ", spike_every " + std::to_string(c.spike_every) +
         ", seed " + std::to_string(c.seed);
}

template <class T>
Problem<T> make_problem(const Case& what, Tensor<T> q, Tensor<T> k, Tensor<T> v, Tensor<T> bias) {
  Reference want = reference_forward(converted<double>(q), converted<double>(k), converted<double>(v),
                                     what.scoring, converted<double>(bias));
  return {what, std::move(q), std::move(k), std::move(v), std::move(want), std::move(bias)};
}

template <class T>
Tensor<T> random_bias(const Case& what) {
  Tensor<T> bias(what.bias().value_or(Shape{}));
  fill_random(bias.view(), {.seed = what.seed, .stream = 4});
  for (T& x : bias.view().elements())
    if (x > std::sqrt(T(3)) * T(7) / 8) x = negative_infinity<T>;
  return bias;
}

template <class T>
std::array<Tensor<T>, 3> random_inputs(const Case& what) {
  std::array inputs{Tensor<T>(what.q()), Tensor<T>(what.kv()), Tensor<T>(what.kv().values())};
  fill_random(inputs[0].view(), {.seed = what.seed, .stream = 0, .spike_every = what.spike_every});
  fill_random(inputs[1].view(), {.seed = what.seed, .stream = 1, .spike_every = what.spike_every});
  fill_random(inputs[2].view(), {.seed = what.seed, .stream = 2});
  return inputs;
}

template <class T>
Problem<T> make_problem(const Case& what) {
  auto [q, k, v] = random_inputs<T>(what);
  return make_problem(what, std::move(q), std::move(k), std::move(v), random_bias<T>(what));
}

template <class T>
void copy_rows(View<T> shard, View<const T> whole, const TokenRanges& rows) {
  const std::vector<Index> from = positions(rows);
  for (Index b = 0; b < shard.shape().batch; ++b)
    for (Index h = 0; h < shard.shape().heads; ++h)
      for (Index s = 0; s < shard.shape().seq; ++s)
        std::ranges::copy(whole.row(b, h, from[static_cast<std::size_t>(s)]), shard.row(b, h, s).begin());
}

template <class T>
Tensor<T> rows_of(const Tensor<T>& whole, const TokenRanges& rows) {
  Tensor<T> shard(whole.shape().with_seq(count(rows)));
  copy_rows(shard.view(), whole.view(), rows);
  return shard;
}

RowErrors rows_of(const RowErrors& whole, const TokenRanges& rows) {
  RowErrors part;
  for (Tensor<double> RowErrors::* numbers : {&RowErrors::roundings, &RowErrors::inputs, &RowErrors::size})
    part.*numbers = rows_of(whole.*numbers, rows);
  return part;
}

template <class T>
void put_rows(Tensor<T>& whole, const Tensor<T>& part, const TokenRanges& rows) {
  const View<const T> shard = part;
  const std::vector<Index> to = positions(rows);
  for (Index b = 0; b < shard.shape().batch; ++b)
    for (Index h = 0; h < shard.shape().heads; ++h)
      for (Index s = 0; s < shard.shape().seq; ++s)
        std::ranges::copy(shard.row(b, h, s),
                          whole.view().row(b, h, to[static_cast<std::size_t>(s)]).begin());
}

bool all_fully_masked(const Tensor<double>& lse, const Scoring& scoring) {
  for (Index b = 0; b < lse.shape().batch; ++b)
    for (Index h = 0; h < lse.shape().heads; ++h)
      for (Index s = 0; s < lse.shape().seq; ++s)
        if (lse.view()(b, h, s) != scoring.sink(h)) return false;
  return true;
}

template <class T>
testing::AssertionResult agrees(const AttentionResult<T>& got, const Problem<T>& problem,
                                const TokenRanges& rows) {
  const Reference& want = problem.want;
  const Index keys = problem.what.keys;
  const auto near = [&](const Tensor<T>& rows_got, const Tensor<double>& wanted, double value,
                        const RowErrors& errors, const CompareOptions& options) {
    const Tolerance tolerance = attention_tolerance<T>(keys, want.max_abs_score, value);
    return judged_by_rows(compare(rows_got, wanted, tolerance, options), converted<double>(rows_got), wanted,
                          rows_of(errors, rows), Precision::of<T>(), keys);
  };
  const Tensor<double> lse = rows_of(want.lse, rows);
  const Comparison out = near(got.out, rows_of(want.out, rows), want.max_abs_value, want.of_out,
                              {.expect_zero = lse.size() > 0 && all_fully_masked(lse, problem.what.scoring)});
  if (!out.ok)
    return testing::AssertionFailure() << "out " << describe(out) << "\n  " << to_string(problem.what);
  const Comparison statistic = near(got.lse, lse, 1, want.of_lse, {.allow_negative_infinity = true});
  if (!statistic.ok)
    return testing::AssertionFailure() << "lse " << describe(statistic) << "\n  " << to_string(problem.what);
  return testing::AssertionSuccess() << "out " << describe(out);
}

template <class T>
testing::AssertionResult agrees(const AttentionResult<T>& got, const Problem<T>& problem) {
  return agrees(got, problem, whole(problem.what.queries));
}

template <class T>
testing::AssertionResult same_bits(const AttentionResult<T>& a, const AttentionResult<T>& b) {
  if (!bitwise_equal(a.out, b.out)) return testing::AssertionFailure() << "out differs in its bits";
  if (!bitwise_equal(a.lse, b.lse)) return testing::AssertionFailure() << "lse differs in its bits";
  return testing::AssertionSuccess();
}

namespace {

/// One token, fewer tokens than ranks, a few a rank, or many.
Index random_length(Dice& dice, Index ranks) {
  switch (dice.between(0, 4)) {
    case 0: return 1;
    case 1: return dice.between(1, ranks);
    case 2: return dice.between(ranks, 3 * ranks);
    default: return dice.between(1, 70);
  }
}

}  // namespace

std::shared_ptr<const Documents> random_documents(Dice& dice, Index keys) {
  std::vector<Index> boundaries{0};
  for (Index left = dice.between(1, 4); left > 0; --left)
    boundaries.push_back(dice.between(boundaries.back(), keys));
  if (dice.one_in(2)) boundaries.back() = keys;
  return std::make_shared<const Documents>(std::move(boundaries));
}

Case random_case(Dice& dice, Index index, Index ranks) {
  Case what;
  const bool causal = index % 2 == 1;
  what.group = std::initializer_list<Index>{1, 2, 8}.begin()[index / 2 % 3];
  what.kv_heads = dice.between(2, 3);
  what.batch = dice.between(1, 2);
  what.keys = random_length(dice, ranks);
  what.queries = dice.one_in(3) ? random_length(dice, ranks) : what.keys;
  what.dim = dice.of<Index>({1, 2, 3, 5, 8, 16, 33});
  what.block = dice.of<Index>({2, 5, 16, 64});
  what.scoring.scale = dice.one_in(4) ? dice.real(0.05, 2.0) : 1.0 / std::sqrt(static_cast<double>(what.dim));
  what.scoring.mask.offset = dice.one_in(8) ? dice.between(-3, 3) : what.keys - what.queries;
  if (causal) what.scoring.mask.right = 0;
  if (dice.one_in(8)) what.scoring.mask.left = dice.between(0, what.keys);
  what.spike_every = dice.one_in(3) ? 4 : 0;
  what.seed = dice.bits();
  what.kind = dice.of({PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag});
  if (dice.one_in(6)) what.scoring.mask.documents = random_documents(dice, what.keys);
  if (dice.one_in(6)) what.scoring.alibi_slopes = alibi_slopes(what.q().heads);
  what.every_hop = false;
  return what;
}

#define RING_ATTENTION_INSTANTIATE(T)                                                        \
  template Problem<T> make_problem(const Case&, Tensor<T>, Tensor<T>, Tensor<T>, Tensor<T>); \
  template Tensor<T> random_bias(const Case&);                                               \
  template std::array<Tensor<T>, 3> random_inputs(const Case&);                              \
  template Problem<T> make_problem(const Case&);                                             \
  template void copy_rows(View<T>, View<const T>, const TokenRanges&);                       \
  template Tensor<T> rows_of(const Tensor<T>&, const TokenRanges&);                          \
  template void put_rows(Tensor<T>&, const Tensor<T>&, const TokenRanges&);                  \
  template testing::AssertionResult agrees(const AttentionResult<T>&, const Problem<T>&,     \
                                           const TokenRanges&);                              \
  template testing::AssertionResult agrees(const AttentionResult<T>&, const Problem<T>&);    \
  template testing::AssertionResult same_bits(const AttentionResult<T>&, const AttentionResult<T>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

template void copy_rows(View<Bf16>, View<const Bf16>, const TokenRanges&);

}  // namespace ring_attention::test
