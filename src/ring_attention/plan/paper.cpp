#include "ring_attention/plan/paper.hpp"

#include <cmath>

#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {

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
  const double tokens = (0.92 * row.gigabytes * gigabyte - fixed) / a_token;
  return tokens < 1024 ? 0 : std::exp2(std::floor(std::log2(tokens / 1024)));
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
