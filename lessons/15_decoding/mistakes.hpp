// Lesson 15, beside the idea: mistakes of systems that decode over a sharded cache.
#pragma once

#include <array>

#include "common/lesson.hpp"

namespace ring_attention::lesson_15 {

using Mistake = Lesson::Mistake;
using Wrong = Lesson::Wrong;

inline constexpr std::array every_mistake{
    Wrong{"log2-lse", "the kernel's maximum is in units of log 2, the merge takes it as natural"},
    Wrong{"average", "the outputs of the ranks are averaged"},
    Wrong{"empty-shard", "a rank without a key returns lse = +inf"},
    Wrong{"one-keeper", "every new token goes to the last rank"},
    Wrong{"local-rotary", "keys are rotated by their index in the rank's cache"},
    Wrong{"late-key", "a token's key is appended after its attention"},
    Wrong{"not-rescaled", "the maxima are all-reduced, the sums are added as they are"}};

/// Plausible tests. The last is the lesson's own.
inline constexpr std::array tests{"out on one rank",         "same bits on all ranks",
                                  "out is finite",           "out within 10 %, 500 keys",
                                  "q = 0: out is mean of V", "out, prompt of 40",
                                  "tokens of fullest rank",  "each token from the first"};

}  // namespace ring_attention::lesson_15
