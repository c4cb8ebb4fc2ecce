// Lesson 13, beside the idea: tokens a second, and the share of this machine's product rate that the model uses.
#pragma once

#include "cli/median.hpp"
#include "common/lesson.hpp"
#include "model/products.hpp"
#include "training.hpp"

namespace ring_attention::lesson_13 {

/// FLOP of a training step: forward, and twice as many backward (attention: 2 products forward, 5 backward). What the
/// backward computes again does not count (model FLOPs: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B).
inline double step_flops(const ModelShape& shape, const Stage& stage) {
  const auto number = [](Index n) { return static_cast<double>(n); };
  const double attended = number(shape.heads * shape.dim), width = number(shape.width);
  const double linear =
      2 * width * (2 * attended + 2 * number(shape.kv_heads * shape.dim) + 2 * number(shape.hidden));
  const double pairs = number(stage.batch) * number(stage.seq) * number(stage.seq + 1) / 2;  // causal
  const double answers =
      number(LineRetrieval(0, stage.seq).queries() * stage.batch) * 2 * width * number(shape.classes);
  return 3 * (linear * number(stage.seq * stage.batch) + answers) + 3.5 * 4 * attended * pairs;
}

/// FLOP/s of all ranks at once: the fastest of some calls of `work`. Collective.
inline double rate_of(const Communicator& comm, double flops, auto work) {
  constexpr int calls = 5;
  double fastest = 0;
  for (int call = 0; call < calls; ++call) {
    barrier(comm);
    const double begin = MPI_Wtime();
    work();
    fastest = std::max(fastest, comm.size() * flops / max_over_ranks(comm, MPI_Wtime() - begin));
  }
  return fastest;
}

/// What the library's kernels reach here: products of matrices, and those of attention (q k^T and p v).
struct ProductRates {
  double matrices, attention;
  [[nodiscard]] double best() const { return std::max(matrices, attention); }
};

/// Collective.
inline ProductRates product_rates(const Communicator& comm) {
  constexpr Index n = 512, seq = 1024, dim = 64;
  const Tensor<float> a({1, 1, n, n}, 0.1F), q({1, 1, seq, dim}, 0.1F);
  Tensor<float> c(a.shape());
  return {rate_of(comm, 2.0 * n * n * n, [&] { multiply<float>(a, a, c); }),
          rate_of(comm, 4.0 * seq * seq * dim, [&] { (void)attention_forward<float>(q, q, q, {0.125}); })};
}

/// Collective.
inline void show_cost(Lesson& lesson, const Communicator& comm, const Trainee& trainee,
                      const Curriculum& stages, const Curves& curves) {
  const ProductRates rates = product_rates(comm);
  Table table({"stage", "sequences", "a step", "tokens/s", "GFLOP/s", "utilisation"});
  std::size_t step = 0;
  for (const Stage& stage : stages) {
    const auto begin = curves.seconds.begin() + static_cast<std::ptrdiff_t>(step);
    const double seconds = median(std::vector<double>(begin, begin + stage.steps));
    step += static_cast<std::size_t>(stage.steps);
    const double tokens = static_cast<double>(stage.seq * stage.batch) / seconds,
                 flops = step_flops(trainee.shape(), stage) / seconds;
    table.row({format("S = %d", static_cast<int>(stage.seq)), std::to_string(stage.batch),
               human_seconds(seconds), format("%.0f", tokens), format("%.1f", flops * 1e-9),
               format("%.0f %%", 100 * flops / rates.best())});
  }
  lesson.print("throughput", table);
  lesson.say(format(
      "  Products on %s at once: %.1f GFLOP/s of matrices, %.1f in attention. The share is of the larger.",
      counted(comm.size(), "rank").c_str(), rates.matrices * 1e-9, rates.attention * 1e-9));
}

}  // namespace ring_attention::lesson_13
