/// \file
/// A diagnosis as text and as JSON: what `ring-attention diagnose` prints, and what Python returns.
#pragma once

#include <string>

#include "diagnose/diagnosis.hpp"
#include "diagnose/submission.hpp"

namespace ring_attention::diagnose {

/// One screen.
[[nodiscard]] std::string to_text(const Diagnosis& diagnosis, const Submission& submission);
[[nodiscard]] std::string to_json(const Diagnosis& diagnosis, const Submission& submission);

/// What its mistakes are.
[[nodiscard]] std::string sentence(const Explanation& explanation);

}  // namespace ring_attention::diagnose
