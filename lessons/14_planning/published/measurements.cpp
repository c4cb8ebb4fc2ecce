#include "14_planning/published/measurements.hpp"

#include <array>
#include <cmath>

#include "plan/pairs.hpp"
#include "plan/ring_recurrence.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::plan {
namespace {

/// Steps of a causal ring without hops, in units of the pairs of one shard with another: the time of the slowest rank
/// at each step (contiguous, striped, zigzag).
double lockstep_pairs(PlacementKind kind, int ranks, double c) {
  const StepPairs pairs = step_pairs(kind, true, c);
  return ring_seconds(
      ranks, ranks, 0, [&](int r, int t) { return pairs.at(r, t); }, [](int, int) { return 0.0; },
      Hops::lockstep);
}

double ideal_pairs(int ranks, double c) { return c * (ranks * c + 1) / 2; }

}  // namespace

bool Prediction::within() const {
  return std::isfinite(predicted) && std::isfinite(published) && std::abs(error()) <= tolerance;
}

double striped_speedup(double hidden, double ffn, double layers, double vocab, double tokens, int ranks) {
  const double c = tokens / ranks;
  const double projections = 4 * hidden * hidden + 2 * hidden * ffn + vocab * hidden / layers;
  const double x = projections / (4 * hidden * c);  // 2 P c over 4 d c^2, counted twice
  // Contiguous computes half a shard with itself and N - 1 whole ones; striped half a shard at each step.
  return (x + ranks - 0.5) / (x + 0.5 * ranks);
}

std::vector<Prediction> striped_attention() {
  struct Model {
    const char* name;
    double hidden, ffn, layers;
    std::array<double, 7> published;
  };
  constexpr std::array<double, 7> lengths{16384, 32768, 65536, 98304, 131072, 196608, 262144};
  constexpr std::array<Model, 3> models{
      {{"1B", 2048, 5504, 22, {1.46, 1.57, 1.65, 1.68, 1.70, 1.71, 1.72}},
       {"3B", 3200, 8640, 26, {1.38, 1.51, 1.61, 1.65, 1.67, 1.69, 1.71}},
       {"7B", 4096, 11008, 32, {1.34, 1.47, 1.58, 1.62, 1.65, 1.68, 1.70}}}};
  std::vector<Prediction> rows;
  for (const Model& model : models)
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const double speedup = striped_speedup(model.hidden, model.ffn, model.layers, 32000, lengths[i], 4);
      rows.push_back({"Striped Attention", format("%s, %.0fK tokens", model.name, lengths[i] / 1024), "x",
                      model.published[i], std::round(speedup * 100) / 100, 1e-9});
    }
  return rows;
}

std::vector<Prediction> ring_flash_attention() {
  struct Gpu {
    const char* name;
    double ring, zigzag, striped;   // forward, % of a GPU alone with the same number of pairs
    double ring_both, zigzag_both;  // forward and backward
    double both_over_forward;       // seconds of a GPU alone
  };
  constexpr std::array<Gpu, 2> gpus{{{"H800", 52.1, 85.2, 74.4, 53.9, 90.2, 591.5 / 154.7},
                                     {"A100", 51.4, 81.7, 69.6, 52.5, 89.8, 373.4 / 94.7}}};
  constexpr int ranks = 8;
  constexpr double c = 8192;
  const double imbalance = lockstep_pairs(PlacementKind::contiguous, ranks, c) / ideal_pairs(ranks, c);
  std::vector<Prediction> rows;
  for (const Gpu& gpu : gpus) {
    const double merges = 100 / gpu.zigzag - 1;  // all of a forward, in units of its computing
    const auto row = [&](const char* what, double published, double time, const char* why_not = "") {
      rows.push_back({"ring-flash-attention", std::string(gpu.name) + ", " + what, "%", published, 100 / time,
                      0.04, why_not});
    };
    row("contiguous, forward", gpu.ring, imbalance);
    row("contiguous, both", gpu.ring_both, imbalance);
    row("zigzag, both", gpu.zigzag_both, 1 + 2 * merges / gpu.both_over_forward);
    row("striped, forward", gpu.striped, 1 + merges,
        "at every step half of the tiles on the diagonal are empty");
  }
  return rows;
}

std::vector<Prediction> million_token_inference() {
  constexpr std::array<double, 14> tokens{1280,  3200,  4160,  6400,  12800,  25600,  38400,
                                          51200, 64000, 76800, 89600, 102400, 115200, 128000};
  constexpr std::array<double, 14> milliseconds{1023.39, 1110.18,  1298.92, 1305.56, 2080.67,
                                                3353.02, 4629.23,  5745.08, 6845.21, 7890.35,
                                                8697.27, 10105.78, 11136.4, 11462.15};
  constexpr double context = 128000, gpus = 32, layers = 126, hidden = 16384, parameters = 405e9;
  std::array<double, 14> flop{};
  double weights = 0, mean_flop = 0, mean_time = 0, squares = 0, products = 0;
  const auto weight = [&](std::size_t i) {  // of relative errors, where the model is meant to hold
    return tokens[i] < 6400 ? 0 : 1 / (milliseconds[i] * milliseconds[i]);
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double seen = context - tokens[i] / 2;  // keys of the average new token
    flop[i] = (2 * parameters + 4 * layers * hidden * seen) * tokens[i] / gpus;
    weights += weight(i);
    mean_flop += weight(i) * flop[i];
    mean_time += weight(i) * milliseconds[i];
  }
  mean_flop /= weights;
  mean_time /= weights;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    squares += weight(i) * (flop[i] - mean_flop) * (flop[i] - mean_flop);
    products += weight(i) * (flop[i] - mean_flop) * (milliseconds[i] - mean_time);
  }
  const double slope = products / squares, start = mean_time - slope * mean_flop;
  const std::string source = "Meta, 405B";
  std::vector<Prediction> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    rows.push_back({source, format("prefill, %.0f of 128000 tokens", tokens[i]), "ms", milliseconds[i],
                    start + slope * flop[i], 0.05,
                    tokens[i] < 6400 ? "short prefills are bound by latencies that are not constant" : ""});
  // A token: that of one node, and for each layer attention over more ranks instead of one rank's.
  rows.push_back({source, "a token, 2 nodes", "ms", 60.23, 46.26 + layers * (157.7 - 38.9) / 1000, 0.02});
  rows.push_back({source, "a token, 4 nodes", "ms", 71.31, 46.26 + layers * (238.6 - 38.9) / 1000, 0.02});
  const auto hop = [](double bytes) { return 40 + bytes / 26e3; };  // us: from hops of q, 3.3 and 13 MB
  rows.push_back({source, "hop of K,V, 32000 tokens a rank", "us", 627, hop(32000.0 * 2 * 128 * 2), 0.08});
  return rows;
}

std::vector<Prediction> magi_attention() {
  struct Chart {
    int gpus;
    double full, causal;
  };
  constexpr std::array<Chart, 4> ring{{{8, 511, 421}, {16, 535, 455}, {32, 517, 451}, {64, 513, 447}}};
  constexpr double alone = 605e12, c = 8192, heads = 64, dim = 128;
  constexpr double full = 4 * c * c * heads * dim, causal = full / 2;  // FLOP of a step
  constexpr double loss = causal / 451e12 - causal / alone;
  std::vector<Prediction> rows;
  for (const Chart& chart : ring) {
    const auto row = [&](const char* mask, double flop, double published, const char* why_not) {
      rows.push_back({"MagiAttention's ring", format("%s, %d GPUs", mask, chart.gpus), "TFLOP/s", published,
                      flop / (flop / alone + loss) * 1e-12, 0.04, why_not});
    };
    row("full", full, chart.full, "");
    if (chart.gpus != 32)
      row("causal", causal, chart.causal,
          chart.gpus == 8 ? "one node loses more a step than several do" : "");
  }
  return rows;
}

std::vector<Prediction> dist_flash_attention() {
  constexpr int ranks = 8;
  const double blocks = ranks * (ranks + 1) / 2.0;  // visible pairs of shards, the diagonal as a whole one
  constexpr int steps = ranks / 2 + 1;
  const std::string source = "DistFlashAttn";
  return {{source, "contiguous", "x", 4.5, blocks / ranks, 0.001},
          {source, "balanced, expected", "x", 7.2, blocks / steps, 0.001},
          {source, "balanced, measured", "x", 7.5, blocks / steps, 0.05}};
}

std::vector<Prediction> load_balance() {
  std::vector<Prediction> rows;
  for (const auto& [kind, counted] :
       {std::pair(PlacementKind::contiguous, 1.872), std::pair(PlacementKind::striped, 1.027),
        std::pair(PlacementKind::zigzag, 1.0)})
    rows.push_back({"lesson 09, counted", name(kind), "x", counted,
                    lockstep_pairs(kind, 8, 32) / ideal_pairs(8, 32), 5e-4});
  return rows;
}

std::vector<Prediction> every_prediction() {
  std::vector<Prediction> all;
  for (const auto& rows :
       {striped_attention(), ring_flash_attention(), million_token_inference(), magi_attention(),
        dist_flash_attention(), load_balance(), megatron_pipelines(), llama_3_pipelines()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

double smallest_pass_kv(int ranks, double flops, double kv_heads, double heads, double element, double beta) {
  return ranks * flops * kv_heads * element / (2 * heads * beta);
}

}  // namespace ring_attention::plan
