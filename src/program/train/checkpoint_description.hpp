/// \file
/// checkpoint.json: of which training a checkpoint is, where the matrices are in its arrays, and the curve so far.
#pragma once

#include <string>

#include "program/train/checkpoint.hpp"
#include "program/train/saved_numbers.hpp"

namespace ring_attention {

inline constexpr const char* description_file = "checkpoint.json";

/// \param training  the options that must be the same when it is resumed, as JSON
[[nodiscard]] std::string description_of(const std::string& training, Index steps, const WholeLayout& whole,
                                         const Curve& curve);

/// The curve in a checkpoint.json, a point a step.
/// \param checkpoint  its directory, for errors  \param text  the bytes of the file
/// \param training, whole  of the training that is to be resumed
/// \throws InputError unless the file is one of description_of() with the same training and layout
[[nodiscard]] Curve described_curve(const std::string& checkpoint, const std::string& text,
                                    const std::string& training, const WholeLayout& whole);

/// What to do with a checkpoint that cannot be resumed.
[[nodiscard]] inline std::string begin_anew(const std::string& checkpoint) {
  return "remove " + checkpoint + " to begin anew, or give another --checkpoint";
}

}  // namespace ring_attention
