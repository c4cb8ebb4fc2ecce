// Lesson 16, beside the idea: what is nearly enough.
#pragma once

#include <array>

namespace ring_attention::lesson_16 {

enum class Mistake {
  none,
  relative_integer,
  carried,
  truncated,
  level_of_sum,
  real_maximum,
  hidden_tile,
  floats_in_a_rank,
  tiles_of_shard,
  tiles_of_mask,
  any_number_of_terms,
  digit_of_nan
};

struct Wrong {
  Mistake mistake;
  const char* name;
  const char* description;
};

inline constexpr std::array every_mistake{
    Wrong{Mistake::relative_integer, "relative-integer",
          "64-bit integers relative to the running maximum, low bits shifted out"},
    Wrong{Mistake::carried, "carry", "a low digit that is dropped is rounded into the high one"},
    Wrong{Mistake::truncated, "truncate", "the high digit is truncated, the low one rounded"},
    Wrong{Mistake::level_of_sum, "sum-level", "the level follows the size of the sum, not of the terms"},
    Wrong{Mistake::real_maximum, "real-maximum", "the maximum of a tile is not rounded to a whole number"},
    Wrong{Mistake::hidden_tile, "hidden-tile", "a tile that the mask hides is a term 0, and has a level"},
    Wrong{Mistake::floats_in_a_rank, "rank-floats",
          "dV: a rank adds its tiles of queries as floats, and makes one term of them"},
    Wrong{Mistake::tiles_of_shard, "shard-tiles", "tiles are counted from the beginning of the shard"},
    Wrong{Mistake::tiles_of_mask, "mask-tiles", "tiles are counted from the first key that a query sees"},
    Wrong{Mistake::any_number_of_terms, "no-limit", "the state does not count its terms"},
    Wrong{Mistake::digit_of_nan, "nan-digit", "a NaN gets digits like any number"}};

}  // namespace ring_attention::lesson_16
