// Lesson 08, beside the idea: rings that look right, and tests that pass for them. Every pair is run.
#pragma once

#include <functional>

#include "part.hpp"

namespace ring_attention::lesson_08 {

struct Result {
  Gradients<float> gradients;  // dQ of this rank's queries; dK,dV of its keys
  Cost cost;
  Index parcel_bytes = 0;  // the most that the parcels held
  double seconds = 0;      // the loop
};
using Backward = std::function<Result(const RankShare&, const RingMistake&)>;

inline const std::vector<const char*> names{"right", "dK,dV stay", "shard's delta", "a hop short"};
/// The right ring, and that of each mutant.
inline std::vector<const RingMistake*> rings() {
  std::vector<const RingMistake*> all{&ring_mistake("")};
  for (const Lesson::Wrong& wrong : mutants) all.push_back(&ring_mistake(wrong.mistake));
  return all;
}

// Sums over all elements of all ranks.
struct Sums {
  double error_squared = 0, got_squared = 0, want_squared = 0, product = 0;

  [[nodiscard]] double relative_error() const { return std::sqrt(error_squared / want_squared); }
  [[nodiscard]] bool same_norm() const { return std::abs(std::sqrt(got_squared / want_squared) - 1) <= 1e-5; }
};
inline Sums sums(const Communicator& comm, const Tensor<float>& got, const Tensor<double>& want) {
  std::array<double, 4> all{};
  for (Index i = 0; i < want.size(); ++i) {
    const double g = got.data()[i], w = want.data()[i];
    all[0] += (g - w) * (g - w);
    all[1] += g * g;
    all[2] += w * w;
    all[3] += g * w;
  }
  sum_over_ranks(comm, all);
  return {all[0], all[1], all[2], all[3]};
}

// The sum over all keys of all ranks, for each batch, head and column: a checksum.
template <class T>
Tensor<double> column_sums(const Communicator& comm, const Tensor<T>& shard) {
  Tensor<double> total(shard.shape().with_seq(1));
  for (Index b = 0; b < shard.shape().batch; ++b)
    for (Index h = 0; h < shard.shape().heads; ++h)
      for (Index s = 0; s < shard.shape().seq; ++s)
        for (Index d = 0; d < shard.shape().dim; ++d)
          total.view()(b, h, 0, d) += static_cast<double>(shard.view()(b, h, s, d));
  sum_over_ranks(comm, total.view().elements());
  return total;
}
inline bool same_column_sums(const Communicator& comm, const Tensor<float>& got, const Tensor<double>& want) {
  return compare(column_sums(comm, got), column_sums(comm, want), {.absolute = 1e-4}).ok;
}

inline bool each_agrees(const RankShare& part, const Gradients<float>& got) {
  return std::ranges::all_of(compare_all(part, got), &Comparison::ok);
}

struct WeakerTest {
  std::string name;
  std::function<bool(std::size_t ring)> passes;  // on this rank
};

// Which ring passes which test. All shards have one length: dK,dV that stay need that.
class WeakerTests {
 public:
  WeakerTests(const Communicator& comm, std::uint64_t seed, Backward backward)
      : comm_(comm),
        backward_(std::move(backward)),
        causal_(comm, problem(tokens_of_a_rank * comm.size(), seed, Mask::causal())),
        packed_(comm, problem(tokens_of_a_rank * comm.size(), seed, one_document_a_rank(comm.size()))),
        alone_(self_, problem(tokens_of_a_rank, seed, Mask::causal())) {
    for (const RingMistake* ring : rings_) outcomes_.push_back(backward_(causal_, *ring));
  }

  // How wrong each ring is.
  void show_errors(Lesson& lesson) const {
    Table table({"ring", "dQ off by", "dK off by", "dV off by"});
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      const Gradients<float>& got = of(ring);
      const auto off = [&](const Tensor<float>& one, const Tensor<double>& right) {
        return human_error(sums(comm_, one, right).relative_error());
      };
      table.row(
          {names[ring], off(got.q, causal_.want.q), off(got.k, causal_.want.k), off(got.v, causal_.want.v)});
    }
    lesson.print("errors", table);
  }

  // Which test passes for which ring.
  void show_tests(Lesson& lesson) const {
    std::vector<std::string> heading{"test"};
    heading.insert(heading.end(), names.begin(), names.end());
    Table table(heading);
    std::vector<std::vector<Index>> rows;
    for (const WeakerTest& test : tests()) {
      std::vector<std::string> cells{test.name};
      rows.emplace_back();
      for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
        rows.back().push_back(all_of_ranks(comm_, test.passes(ring)) ? 1 : 0);
        cells.emplace_back(rows.back().back() == 1 ? "passes" : "caught");
      }
      table.row(cells);
    }
    lesson.print("tests", table);
    lesson.check("the right ring passes every test",
                 std::ranges::all_of(rows, [](const auto& row) { return row[0] == 1; }));
    if (comm_.size() == 1) return;  // the rings are one and the same
    const auto fooled = [](const auto& row) { return row[1] + row[2] + row[3] > 0; };
    lesson.check("each test but the last passes for a wrong ring",
                 std::all_of(rows.begin(), rows.end() - 1, fooled));
    lesson.check("the last one catches them all", !fooled(rows.back()));
  }

 private:
  static constexpr Index tokens_of_a_rank = 16;

  static RandomProblem problem(Index seq, std::uint64_t seed, const Mask& mask) {
    return {{1, 4, seq, 8}, {1, 2, seq, 8}, {default_scale(8), mask}, seed};
  }
  static Mask one_document_a_rank(int ranks) {
    std::vector<Index> limits;
    for (Index rank = 0; rank <= ranks; ++rank) limits.push_back(tokens_of_a_rank * rank);
    return {.documents = std::make_shared<const Documents>(std::move(limits))};
  }
  [[nodiscard]] const Gradients<float>& of(std::size_t ring) const { return outcomes_[ring].gradients; }

  [[nodiscard]] std::vector<WeakerTest> tests() const {
    return {
        {"out of the forward",
         [this](std::size_t) {
           const Reference& want = causal_.want_forward;
           return compare(causal_.forward.out, want.out, causal_.problem.tolerance<float>(want)).ok;
         }},
        {"dQ", [this](std::size_t ring) { return compare_all(causal_, of(ring))[0].ok; }},
        {"dV", [this](std::size_t ring) { return compare_all(causal_, of(ring))[2].ok; }},
        {"sums of dK and dV over all keys",
         [this](std::size_t ring) {
           const bool k = same_column_sums(comm_, of(ring).k, causal_.want.k);
           return same_column_sums(comm_, of(ring).v, causal_.want.v) && k;
         }},
        {"norms of dK and dV",
         [this](std::size_t ring) {
           const bool k = sums(comm_, of(ring).k, causal_.want.k).same_norm();
           return sums(comm_, of(ring).v, causal_.want.v).same_norm() && k;
         }},
        {"the loss falls along the gradients", [this](std::size_t ring) { return loss_falls(of(ring)); }},
        {"dQ of rank 0, causal",
         [this](std::size_t ring) { return comm_.rank() != 0 || compare_all(causal_, of(ring))[0].ok; }},
        {"dQ, dK, dV on one rank",
         [this](std::size_t ring) {
           return each_agrees(alone_, backward_(alone_, *rings_[ring]).gradients);
         }},
        {"dQ, dK, dV, one document a rank",
         [this](std::size_t ring) {
           return each_agrees(packed_, backward_(packed_, *rings_[ring]).gradients);
         }},
        {"hops and bytes", [this](std::size_t ring) { return cost_is_right(causal_, outcomes_[ring].cost); }},
        {"dQ, dK, dV, each on each rank",
         [this](std::size_t ring) { return each_agrees(causal_, of(ring)); }},
    };
  }

  // To first order: a small step against `got` changes the loss by minus its product with the right gradient.
  [[nodiscard]] bool loss_falls(const Gradients<float>& got) const {
    return sums(comm_, got.q, causal_.want.q).product + sums(comm_, got.k, causal_.want.k).product +
               sums(comm_, got.v, causal_.want.v).product >
           0;
  }

  const Communicator& comm_;
  Communicator self_{MPI_COMM_SELF};
  Backward backward_;
  RankShare causal_, packed_, alone_;
  std::vector<const RingMistake*> rings_ = rings();
  std::vector<Result> outcomes_;
};

}  // namespace ring_attention::lesson_08
