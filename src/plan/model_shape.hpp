/// \file
/// `ModelShape`: the sizes of a transformer, and its parameters.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention::plan {

/// A decoder of LLaMA's kind: per layer q, k, v, out and a feed-forward part of three matrices; a table of tokens at
/// both ends; no biases.
struct ModelShape {
  std::string name;
  Index layers = 0;
  Index hidden = 0;    ///< heads * dim
  Index heads = 0;     ///< query heads
  Index kv_heads = 0;  ///< divides heads
  Index ffn = 0;       ///< hidden numbers of the feed-forward part
  Index vocab = 0;

  [[nodiscard]] Index dim() const { return hidden / heads; }
  /// Matrices of one layer (the gains of its norms, 2 hidden numbers, are left out).
  [[nodiscard]] double layer_parameters() const;
  /// All layers and both tables.
  [[nodiscard]] double parameters() const;
};

/// LLaMA (arXiv 2302.13971, table 2; the feed-forward sizes and OpenLLaMA's 3B are those of their published
/// configurations) and Llama 3 (arXiv 2407.21783, table 3).
///
/// Two slips of sources are not copied: Liu et al., appendix D, print hidden size 5140 for 13B (their figure 5 has
/// 5120), and 7168 for 33B (LLaMA's is 6656, which is llama-30b here).
[[nodiscard]] const std::vector<ModelShape>& named_models();

/// \throws InputError, which lists the names, for another one
[[nodiscard]] ModelShape model_named(const std::string& name);

/// \throws InputError when the sizes do not fit together
void validate(const ModelShape& model);

}  // namespace ring_attention::plan
