/// \file
/// The answer of `ring-attention diagnose`, as text and as JSON.
#pragma once

#include <string>

#include "diagnose/diagnosis.hpp"
#include "program/diagnose/files.hpp"

namespace ring_attention {

/// One screen.
[[nodiscard]] std::string to_text(const diagnose::Diagnosis& diagnosis, const Submission& submission);
[[nodiscard]] std::string to_json(const diagnose::Diagnosis& diagnosis, const Submission& submission);

}  // namespace ring_attention
