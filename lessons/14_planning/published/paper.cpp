#include "14_planning/published/paper.hpp"

#include <cmath>

#include "plan/memory.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {

namespace {

/// Thousands, the largest power of two; 0 below one thousand.
double power_of_two(double tokens) {
  return tokens < 1024 ? 0 : std::exp2(std::floor(std::log2(tokens / 1024)));
}

}  // namespace

std::vector<Activations> table_1(double b, double s, double h, double n, double c) {
  const double vanilla = 2 * b * n * s * s, tokens = b * s * h, block = b * c * h;
  return {{"vanilla", 2 * b * h * s * s, vanilla},
          {"memory-efficient attention", 8 * tokens, 8 * tokens},
          {"and feed-forward part", 2 * tokens, 2 * tokens},
          {"ring", 6 * block, 2 * 6 * block}};
}

double blockwise_context(const LongestContext& row, double gigabyte) {
  const ModelShape model = model_named(row.model);
  const auto layers = static_cast<double>(model.layers), hidden = static_cast<double>(model.hidden);
  const double fixed = 16 * model.parameters() / row.count + 2 * 4 * model.layer_parameters();
  const double a_token = 4 * hidden * layers + 24 * hidden + 8 * static_cast<double>(model.vocab);
  return power_of_two((0.92 * row.gigabytes * gigabyte - fixed) / a_token);
}

double ring_context(const LongestContext& row) {
  Machine device;
  device.memory = row.gigabytes * 1e9;
  const Workload work{model_named(row.model), Phase::training, 0, 1, float_bytes};
  return power_of_two(longest_context(work, {.ring = row.count}, device));
}

double flops_ratio(double hidden, double multiple) {
  constexpr double context = 4096;
  return (6 * hidden + multiple * context) / (6 * hidden + context);
}

double mixed_share(const std::vector<double>& shares, const std::vector<double>& rates) {
  require(shares.size() == rates.size(), "mixed_share: one rate for each share");
  double time = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) time += shares[i] / rates[i];
  return 1 / time;
}

}  // namespace ring_attention::plan
