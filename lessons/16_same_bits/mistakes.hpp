// Lesson 16, beside the idea: what is nearly enough.
#pragma once

#include <array>

#include "common/lesson.hpp"

namespace ring_attention::lesson_16 {

using Mistake = Lesson::Mistake;
using Wrong = Lesson::Wrong;

inline constexpr std::array every_mistake{
    Wrong{"relative-integer", "64-bit integers relative to the running maximum, low bits shifted out"},
    Wrong{"carry", "a low digit that is dropped is rounded into the high one"},
    Wrong{"truncate", "the high digit is truncated, the low one rounded"},
    Wrong{"sum-level", "the level follows the size of the sum, not of the terms"},
    Wrong{"real-maximum", "the maximum of a tile is not rounded to a whole number"},
    Wrong{"hidden-tile", "a tile that the mask hides is a term 0, and has a level"},
    Wrong{"rank-floats", "dV: a rank adds its tiles of queries as floats, and makes one term of them"},
    Wrong{"shard-tiles", "tiles are counted from the beginning of the shard"},
    Wrong{"mask-tiles", "tiles are counted from the first key that a query sees"},
    Wrong{"no-limit", "the state does not count its terms"},
    Wrong{"nan-digit", "a NaN gets digits like any number"}};

}  // namespace ring_attention::lesson_16
