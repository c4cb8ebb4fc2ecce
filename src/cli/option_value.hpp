/// \file
/// Text of the command line as numbers. All of it must be the number.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace ring_attention {

/// \throws InputError that names the flag and what it wants
[[nodiscard]] Index whole_number(const std::string& flag, const std::string& text, Bounds bounds);

/// \throws InputError, also for nan and inf
[[nodiscard]] double finite_number(const std::string& flag, const std::string& text);

/// `1,8,1024,64`: as many whole numbers as `letters`, B,H,S,D, has.
/// \throws InputError
[[nodiscard]] std::vector<Index> whole_numbers(const std::string& flag, const std::string& text,
                                               const std::string& letters, Bounds bounds);

}  // namespace ring_attention
