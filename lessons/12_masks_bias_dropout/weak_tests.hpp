// Lesson 12, beside the idea: every mistake against the test that passes for it, and against the dense reference.
#pragma once

#include "part.hpp"

namespace ring_attention::lesson_12 {

/// All rules at once. Any lengths from 1 on.
inline Setup everything(Index queries, Index keys, Index heads, Index kv_heads, Index dim,
                        std::uint64_t seed) {
  const Rules rules{.scale = default_scale(dim),
                    .left = keys / 2,
                    .right = 3,
                    .offset = keys - queries,
                    .documents = {0, keys / 5, keys / 5, 2 * keys / 3},  // the second one is empty
                    .slopes = alibi_slopes(heads),
                    .sinks = std::vector<double>(static_cast<std::size_t>(heads), 0.5),
                    .dropout = {.probability = 0.25, .seed = 3, .step = 7, .layer = 2}};
  return {{1, heads, queries, dim}, {1, kv_heads, keys, dim}, rules, DenseBias::random, seed};
}

/// Nothing but a softmax over all keys.
inline Rules no_rules(Index dim) {
  return {.scale = default_scale(dim), .left = Mask::unlimited, .right = Mask::unlimited};
}

/// The mask of the dropout for this rank's queries, read through the ring: with q = 0 and V the unit matrix, out(i, j)
/// is not 0 where a pair is kept. [1, heads, queries, keys]
inline Tensor<double> mask_of(const Communicator& comm, const Dropout& dropout, Mistake mistake, Index seq,
                              Index heads, PlacementKind kind) {
  Setup setup{{1, heads, seq, seq}, {1, heads, seq, seq}, no_rules(1), DenseBias::none, 1, kind};
  setup.rules.dropout = dropout;
  const RankShare part(comm, setup);
  Inputs in{Tensor<double>(part.own().q.shape()),
            {},
            converted<double>(part.own().k),
            Tensor<double>(part.own().v.shape()),
            {}};
  const std::vector<Index> keys = positions(part.keys().ranges(comm.rank()));
  for (Index h = 0; h < heads; ++h)
    for (Index j = 0; j < std::ssize(keys); ++j) in.v.view()(0, h, j, keys[static_cast<std::size_t>(j)]) = 1;
  return part.forward(in, setup.rules, mistake).out;
}

class WeakTests {
 public:
  WeakTests(const Communicator& comm, std::uint64_t seed)
      : comm_(comm), seed_(seed), part_(comm, usual(comm.size())), want_(part_.oracle()) {}

  /// The usual problem: each array against the dense reference.
  [[nodiscard]] Comparisons compared(Mistake mistake) const {
    return compare_all(part_, part_.run(mistake), want_);
  }
  [[nodiscard]] bool oracle_agrees(const Comparisons& all) const { return agree_on(part_, all); }

  /// The array that is farthest from the dense reference, and how far, relative to its norm over all ranks.
  [[nodiscard]] std::pair<std::string, double> worst(const Comparisons& all) const {
    std::vector<double> squares;
    for (const auto& [name, comparison] : all) {
      const double norm = comparison.norm_want, error = comparison.relative_error * norm;
      squares.insert(squares.end(), {error * error, norm * norm});
    }
    sum_over_ranks(comm_, squares);
    std::pair<std::string, double> worst{"", 0};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double relative = std::sqrt(squares[2 * i] / squares[2 * i + 1]);
      if (relative > worst.second) worst = {all[i].first, relative};
    }
    return worst;
  }

  [[nodiscard]] bool passes(WeakTest test, Mistake mistake) const {
    Setup setup = usual(comm_.size());
    switch (test) {
      case WeakTest::one_rank: return agrees(self_, usual(1), mistake);
      case WeakTest::as_many_keys:
        return agrees(comm_, everything(setup.q.seq, setup.q.seq, 4, 2, 8, seed_), mistake, {"out", "lse"});
      case WeakTest::mask_as_bias:
        setup.bias = DenseBias::mask;
        setup.rules.slopes.clear();
        return agrees(comm_, setup, mistake, {"out", "lse"});
      case WeakTest::rows_sum_to_zero:
      case WeakTest::table_sums_to_zero: return sums_to_zero(test, mistake);
      case WeakTest::share_of_dropped: return share_is_p(mistake);
      case WeakTest::differences: return differences_agree(mistake);
      case WeakTest::probability_zero:
        setup.rules.dropout.probability = 0;
        return agrees(comm_, setup, mistake);
      case WeakTest::grad_v: return agree_on(part_, compared(mistake), {"out", "lse", "dV"});
      case WeakTest::direction: return same_direction(mistake);
      case WeakTest::rank_0:
        setup = everything(setup.q.seq, setup.q.seq, 4, 2, 8, seed_);
        setup.rules.right = 0;
        return rank_0_agrees(setup, mistake);
      case WeakTest::grad_qkv:
        return agree_on(part_, compared(mistake), {"out", "lse", "dQ", "dK", "dV", "dbias"});
    }
    return false;
  }

 private:
  /// 8 queries a rank, and keys before the first of them.
  [[nodiscard]] Setup usual(Index ranks) const {
    return everything(8 * ranks, 8 * ranks + 5, 4, 2, 8, seed_);
  }

  static bool agrees(const Communicator& comm, const Setup& setup, Mistake mistake,
                     const std::vector<std::string>& names = {}) {
    const RankShare part(comm, setup);
    return agree_on(part, compare_all(part, part.run(mistake), part.oracle()), names);
  }

  [[nodiscard]] bool rank_0_agrees(const Setup& setup, Mistake mistake) const {
    const RankShare part(comm_, setup);
    const Comparisons all = compare_all(part, part.run(mistake), part.oracle());
    return all_of_ranks(comm_, comm_.rank() != 0 || all.front().second.ok);
  }

  // Without sinks a softmax does not change when all scores of a row move.
  [[nodiscard]] bool sums_to_zero(WeakTest test, Mistake mistake) const {
    Setup setup = usual(comm_.size());
    setup.rules.sinks.clear();
    const Result got = RankShare(comm_, setup).run(mistake);
    bool ok = true;
    const auto expect_zero = [&](std::span<const double> terms) {
      double sum = 0, size = 0;
      for (const double x : terms) {
        sum += x;
        size += std::abs(x);
      }
      ok = ok && std::abs(sum) <= 1e-12 * size;
    };
    if (test == WeakTest::table_sums_to_zero) expect_zero(got.table);
    for (Index i = 0; test == WeakTest::rows_sum_to_zero && i < got.gradients.bias.shape().seq; ++i)
      expect_zero(got.gradients.bias.view().row(0, 0, i));
    return all_of_ranks(comm_, ok);
  }

  [[nodiscard]] bool share_is_p(Mistake mistake) const {
    const Dropout dropout{.probability = 0.25, .seed = 1};
    const Tensor<double> mask =
        mask_of(comm_, dropout, mistake, Index{16} * comm_.size(), 4, PlacementKind::contiguous);
    std::array counts{static_cast<double>(std::ranges::count(mask.view().elements(), 0.0)),
                      static_cast<double>(mask.size())};
    sum_over_ranks(comm_, std::span<double>(counts));
    return std::abs(counts[0] / counts[1] - dropout.probability) < 0.05;
  }

  // The loss sum(out * dO) at two points on a line, and its derivative from the gradients.
  [[nodiscard]] bool differences_agree(Mistake mistake) const {
    const Result got = part_.run(mistake);
    const auto moved = [&](const Tensor<double>& from, std::uint64_t stream, double by) {
      Tensor<double> to(from.shape());
      fill_random(to.view(), RandomFill{seed_, stream});
      for (Index i = 0; i < to.size(); ++i) to.data()[i] = from.data()[i] + by * to.data()[i];
      return to;
    };
    const auto loss = [&](double by) {
      const Inputs& own = part_.own();
      const Inputs in{
          moved(own.q, 5, by), {}, moved(own.k, 6, by), moved(own.v, 7, by), moved(own.bias, 8, by)};
      return dot(part_.forward(in, part_.setup().rules, mistake).out, own.grad_out);
    };
    const auto along = [&](const Tensor<double>& gradient, std::uint64_t stream) {
      return dot(gradient, moved(Tensor<double>(gradient.shape()), stream, 1));
    };
    const Gradients<double>& g = got.gradients;
    const double h = 1e-5;
    std::array derivatives{(loss(h) - loss(-h)) / (2 * h),
                           along(g.q, 5) + along(g.k, 6) + along(g.v, 7) + along(g.bias, 8)};
    sum_over_ranks(comm_, std::span<double>(derivatives));
    return std::abs(derivatives[0] - derivatives[1]) <= 1e-6 * std::abs(derivatives[1]);
  }

  [[nodiscard]] bool same_direction(Mistake mistake) const {
    const Tensor<double>& want = want_.forward.out;
    const Tensor<double> got = part_.forward(part_.own(), part_.setup().rules, mistake).out;
    const Shape& q = want.shape();
    bool ok = true;
    for (Index row = 0; row < q.batch * q.heads * q.seq; ++row) {
      const std::span<const double> a(got.data() + row * q.dim, static_cast<std::size_t>(q.dim));
      const std::span<const double> b(want.data() + row * q.dim, static_cast<std::size_t>(q.dim));
      const auto product = [](auto x, auto y) {
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
      };
      ok = ok && product(a, b) >= (1 - 1e-12) * std::sqrt(product(a, a) * product(b, b));
    }
    return all_of_ranks(comm_, ok);
  }

  static double dot(const Tensor<double>& a, const Tensor<double>& b) {
    const auto x = a.view().elements(), y = b.view().elements();
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  }

  const Communicator& comm_;
  Communicator self_{MPI_COMM_SELF};
  std::uint64_t seed_;
  RankShare part_;  // the usual problem
  RankShare::Oracle want_;
};

/// The table of mistakes.
inline void show_mistakes(Lesson& lesson, const Communicator& comm) {
  const WeakTests tests(comm, lesson.seed());
  bool right = tests.oracle_agrees(tests.compared(Lesson::no_mistake)), all_pass = true, all_rejected = true;
  for (const auto& [test, name] : weak_tests) right = right && tests.passes(test, Lesson::no_mistake);
  Table table({"mistake", "a test that passes for it", "", "the reference: off by"});
  for (const Wrong& wrong : every_mistake) {
    const auto* weak =
        &*std::ranges::find(weak_tests, wrong.passes, &std::pair<WeakTest, const char*>::first);
    const bool passes = tests.passes(wrong.passes, wrong.mistake);
    const Comparisons compared = tests.compared(wrong.mistake);
    const auto [name, error] = tests.worst(compared);
    table.row({wrong.name, weak->second, passes ? "passes" : "caught", name + " " + human_error(error)});
    if (comm.size() == 1 && wrong.needs_ranks) continue;
    all_pass = all_pass && passes;
    all_rejected = all_rejected && !tests.oracle_agrees(compared);
  }
  lesson.print("mistakes", table);
  lesson.check("without a mistake all these tests pass, and the dense reference agrees", right);
  lesson.check("each test passes for its mistake", all_pass);
  lesson.check("the dense reference rejects every mistake that this number of ranks can show", all_rejected);
}

}  // namespace ring_attention::lesson_12
