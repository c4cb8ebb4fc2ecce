// Lesson 15, beside the idea: mistakes of systems that decode over a sharded cache.
#pragma once

#include <array>

namespace ring_attention::lesson_15 {

enum class Mistake {
  none,
  log2_lse,
  plain_average,
  empty_shard_infinite,
  one_keeper,
  local_rotary,
  appended_late,
  sums_not_rescaled
};

struct Wrong {
  Mistake mistake;
  const char* name;
  const char* description;
};

inline constexpr std::array every_mistake{
    Wrong{Mistake::log2_lse, "log2-lse",
          "the kernel's maximum is in units of log 2, the merge takes it as natural"},
    Wrong{Mistake::plain_average, "average", "the outputs of the ranks are averaged"},
    Wrong{Mistake::empty_shard_infinite, "empty-shard", "a rank without a key returns lse = +inf"},
    Wrong{Mistake::one_keeper, "one-keeper", "every new token goes to the last rank"},
    Wrong{Mistake::local_rotary, "local-rotary", "keys are rotated by their index in the rank's cache"},
    Wrong{Mistake::appended_late, "late-key", "a token's key is appended after its attention"},
    Wrong{Mistake::sums_not_rescaled, "not-rescaled",
          "the maxima are all-reduced, the sums are added as they are"}};

/// Plausible tests. The last is the lesson's own.
inline constexpr std::array tests{"out on one rank",         "same bits on all ranks",
                                  "out is finite",           "out within 10 %, 500 keys",
                                  "q = 0: out is mean of V", "out, prompt of 40",
                                  "tokens of fullest rank",  "each token from the first"};

}  // namespace ring_attention::lesson_15
