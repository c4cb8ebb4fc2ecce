#include <array>

#include "14_planning/published/measurements.hpp"
#include "plan/step_time.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::plan {

std::vector<Prediction> megatron_pipelines() {
  struct Run {
    const char* name;
    Index heads, hidden, layers;
    int stages, gpus;
    double batch, published;
  };
  constexpr std::array<Run, 6> runs{{{"39.1B", 64, 8192, 48, 2, 512, 1536, 138},
                                     {"76.1B", 80, 10240, 60, 4, 1024, 1792, 140},
                                     {"145.6B", 96, 12288, 80, 8, 1536, 2304, 148},
                                     {"310.1B", 128, 16384, 96, 16, 1920, 2160, 155},
                                     {"529.6B", 128, 20480, 105, 35, 2520, 2520, 163},
                                     {"1008B", 160, 25600, 128, 64, 3072, 3072, 163}}};
  constexpr Index vocab = 51200;
  constexpr double seq = 2048, matrices = 2.0 / 3;  // of the feed-forward part, where ModelShape has three
  constexpr Index large = 16384;                    // from this hidden size on the model holds
  std::vector<Prediction> rows;
  for (const Run& run : runs) {
    const auto hidden = static_cast<double>(run.hidden), layers = static_cast<double>(run.layers);
    const auto ffn = static_cast<Index>(matrices * 4 * hidden);
    const ModelShape model{run.name, run.layers, run.hidden, run.heads, run.heads, ffn, vocab};
    const Mesh mesh{.tensor = 8, .data = run.gpus / 8 / run.stages, .pipeline = run.stages};
    const double seconds =
        step_time({model, Phase::training, seq, run.batch}, mesh, machine_named("8xa100")).total();
    const double flop = 96 * run.batch * seq * layers * hidden * hidden *
                        (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden));  // its equation 3
    rows.push_back(
        {"Megatron-LM", format("%s, %d stages", run.name, run.stages), "TFLOP/s", run.published,
         flop / seconds / run.gpus * 1e-12, 0.15,
         run.hidden >= large ? "" : "norms, dropout and stored scores take longer beside small products"});
  }
  return rows;
}

std::vector<Prediction> llama_3_pipelines() {
  struct Run {
    int ring, data;
    double context, published;
  };
  constexpr std::array<Run, 3> runs{{{1, 64, 8192, 430}, {1, 128, 8192, 400}, {16, 8, 131072, 380}}};
  constexpr double tokens = 16 << 20;  // of a step
  std::vector<Prediction> rows;
  for (const Run& run : runs) {
    Workload work{model_named("llama-3-405b"), Phase::training, run.context, tokens / run.context};
    work.chunks = 8;
    work.recomputes = false;
    const Mesh mesh{.tensor = 8, .ring = run.ring, .data = run.data, .pipeline = 16};
    const Machine machine = machine_named("8xh100");
    const double seconds = step_time(work, mesh, machine).total();
    rows.push_back({"Llama 3, 405B", format("%d GPUs, %.0f tokens", mesh.ranks(), run.context), "TFLOP/s",
                    run.published, utilisation(work, mesh, machine, seconds) * machine.peak_flops * 1e-12,
                    0.15});
  }
  return rows;
}

}  // namespace ring_attention::plan
