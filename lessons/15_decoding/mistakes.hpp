// Lesson 15, beside the idea: mistakes of systems that decode over a sharded cache.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

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
    Wrong{Mistake::plain_average, "plain-average", "the outputs of the ranks are averaged"},
    Wrong{Mistake::empty_shard_infinite, "empty-shard", "a rank without a key returns lse = +inf"},
    Wrong{Mistake::one_keeper, "one-keeper", "every new token goes to the last rank"},
    Wrong{Mistake::local_rotary, "local-rotary", "keys are rotated by their index in the rank's cache"},
    Wrong{Mistake::appended_late, "appended-late", "a token's key is appended after its attention"},
    Wrong{Mistake::sums_not_rescaled, "not-rescaled",
          "the maxima are all-reduced, the sums are added as they are"}};

/// Plausible tests. The last is the lesson's own.
enum class Test {
  one_rank,
  same_on_all,
  finite,
  within_ten_percent,
  zero_query,
  long_prompt,
  tokens_held,
  every_token
};
inline constexpr std::array test_names{"out, on one rank",
                                       "the same bits on all ranks",
                                       "out is finite",
                                       "out within 10 %, prompt of 500 tokens",
                                       "q = 0: out is the mean of V",
                                       "out, prompt of 40 tokens",
                                       "tokens of the fullest rank",
                                       "out and lse of each token from the first on, tokens held"};

}  // namespace ring_attention::lesson_15
