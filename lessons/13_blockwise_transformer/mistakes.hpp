// Lesson 13, beside the idea: mistakes of systems that train a sharded model.
#pragma once

#include <array>

#include "common/lesson.hpp"

namespace ring_attention::lesson_13 {

using Mistake = Lesson::Mistake;
using Wrong = Lesson::Wrong;

inline constexpr std::array every_mistake{
    Wrong{"mean-of-means", "a rank divides its loss by its own labels, and the ranks average"},
    Wrong{"shifted-labels", "labels are next tokens, shifted inside a shard"},
    Wrong{"shifted-tokens", "the token before is the one before in the shard"},
    Wrong{"local-rotary", "rotary positions are places in the shard"},
    Wrong{"data-ranks-only", "weight gradients are summed over the data axis only"},
    Wrong{"norm-twice", "the gradients of the norms are summed over the tensor axis, too"},
    Wrong{"stale-weights", "FSDP keeps the weights that it gathered first"}};

}  // namespace ring_attention::lesson_13
