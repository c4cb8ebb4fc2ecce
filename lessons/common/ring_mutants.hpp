// The mistakes of a ring that several lessons offer, with their ids of src/mistakes.
#pragma once

#include "common/lesson.hpp"

namespace ring_attention {

inline const Lesson::Wrong algorithm_1_as_printed{
    "step-too-few", "N - 1 steps, as the paper's algorithm 1 is printed", "steps-short"};
inline const Lesson::Wrong early_advance{"early-advance", "compute with the parcel that is still arriving",
                                         "early-swap"};

}  // namespace ring_attention
