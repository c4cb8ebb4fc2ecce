// Lesson 13, beside the idea: mistakes of systems that train a sharded model.
#pragma once

#include <array>

namespace ring_attention::lesson_13 {

enum class Mistake {
  none,
  mean_of_means,
  shifted_labels,
  shifted_tokens,
  local_rotary,
  data_ranks_only,
  norm_twice,
  stale_weights
};

struct Wrong {
  Mistake mistake;
  const char* name;
  const char* description;
};

inline constexpr std::array every_mistake{
    Wrong{Mistake::mean_of_means, "mean-of-means",
          "a rank divides its loss by its own labels, and the ranks average"},
    Wrong{Mistake::shifted_labels, "shifted-labels", "labels are next tokens, shifted inside a shard"},
    Wrong{Mistake::shifted_tokens, "shifted-tokens", "the token before is the one before in the shard"},
    Wrong{Mistake::local_rotary, "local-rotary", "rotary positions are places in the shard"},
    Wrong{Mistake::data_ranks_only, "data-ranks-only", "weight gradients are summed over the data axis only"},
    Wrong{Mistake::norm_twice, "norm-twice",
          "the gradients of the norms are summed over the tensor axis, too"},
    Wrong{Mistake::stale_weights, "stale-weights", "FSDP keeps the weights that it gathered first"}};

}  // namespace ring_attention::lesson_13
