#include "cli/help_text.hpp"

#include <algorithm>

namespace ring_attention {
namespace {

constexpr std::size_t line_width = 100;

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t column = indent, last_space = 0;  // of the line; 0: it has none
  for (const char c : text) {
    result += c;
    ++column;
    if (c == ' ') last_space = result.size() - 1;
    if (c == '\n') column = last_space = 0;
    if (column <= line_width || last_space == 0) continue;
    result.replace(last_space, 1, '\n' + std::string(indent, ' '));
    column = result.size() - last_space - 1;
    last_space = 0;
  }
  return result;
}

std::size_t widest_name(const std::vector<HelpEntry>& entries) {
  std::size_t widest = 0;
  for (const HelpEntry& entry : entries) widest = std::max(widest, entry.name.size());
  return widest;
}

std::string help_columns(const std::vector<HelpEntry>& entries, std::size_t width) {
  std::string text;
  for (const HelpEntry& entry : entries) {
    std::string name = entry.name;
    name.resize(std::max(width, name.size()), ' ');
    text += "  " + name + "  " + wrapped(entry.text, width + 4) + '\n';
  }
  return text;
}

}  // namespace ring_attention
