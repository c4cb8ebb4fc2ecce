/// \file
/// Text of the command line: values as numbers, all of the text, and the layout of `--help`, two columns in lines of at
/// most 100 characters.
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

/// `  --block N   Tokens of a tile inside a rank (default 64)`
struct HelpEntry {
  std::string name;
  std::string text;
};

/// Breaks `text` at spaces; lines after the first start with `indent` spaces. Keeps the line ends of `text`.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t indent = 0);

/// Characters of the longest name.
[[nodiscard]] std::size_t widest_name(const std::vector<HelpEntry>& entries);

/// The entries, texts aligned after names of up to `width` characters; each line ended by a newline.
[[nodiscard]] std::string help_columns(const std::vector<HelpEntry>& entries, std::size_t width);

}  // namespace ring_attention
