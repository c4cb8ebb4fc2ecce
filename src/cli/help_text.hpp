/// \file
/// The layout of `--help`: two columns, in lines of at most 100 characters.
#pragma once

#include <string>
#include <vector>

namespace ring_attention {

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
