// Lesson 13, beside the idea: tokens a second, and the share of this machine's product rate that the model uses.
#pragma once

#include "common/lesson.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/median.hpp"
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

/// FLOP/s of products of two 256 x 256 matrices, float, on all ranks at once. Collective.
inline double product_rate(const Communicator& comm) {
  constexpr Index n = 256;
  constexpr int repetitions = 40;
  const Matrix<float> a = Matrix<float>::Random(n, n), b = Matrix<float>::Random(n, n);
  Matrix<float> c(n, n);
  double fastest = 0;
  for (int round = 0; round < 3; ++round) {
    barrier(comm);
    const double begin = MPI_Wtime();
    for (int i = 0; i < repetitions; ++i) c.noalias() = a * b;
    const double seconds = max_over_ranks(comm, MPI_Wtime() - begin);
    fastest = std::max(fastest, comm.size() * repetitions * 2.0 * n * n * n / seconds);
  }
  return fastest;
}

/// Collective.
inline void show_cost(Lesson& lesson, const Communicator& comm, const Trainee& trainee,
                      const Curriculum& stages, const Curves& curves) {
  const double rate = product_rate(comm);
  Table table({"stage", "sequences", "a step", "tokens/s", "GFLOP/s", "of the product rate"});
  std::vector<std::vector<double>> rows;
  std::size_t step = 0;
  for (const Stage& stage : stages) {
    const auto begin = curves.seconds.begin() + static_cast<std::ptrdiff_t>(step);
    const double seconds = median(std::vector<double>(begin, begin + stage.steps));
    step += static_cast<std::size_t>(stage.steps);
    const double tokens = static_cast<double>(stage.seq * stage.batch) / seconds,
                 flops = step_flops(trainee.shape(), stage) / seconds;
    rows.push_back({static_cast<double>(stage.seq), tokens, flops, flops / rate});
    table.row({format("S = %d", static_cast<int>(stage.seq)), std::to_string(stage.batch),
               human_seconds(seconds), format("%.0f", tokens), format("%.1f", flops * 1e-9),
               format("%.0f %%", 100 * flops / rate)});
  }
  lesson.print(table);
  lesson.say(format("  Products of 256 x 256 on %s at once: %.1f GFLOP/s.",
                    counted(comm.size(), "rank").c_str(), rate * 1e-9));
  lesson.record("throughput", rows);
  lesson.record("product_rate", rate);
}

}  // namespace ring_attention::lesson_13
