#include "cli/help_text.hpp"

#include <algorithm>
#include <sstream>

namespace ring_attention {
namespace {

constexpr std::size_t line_width = 100;

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!result.empty()) {
      result += '\n';
      column = 0;
    }
    const std::size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    result += line.substr(0, spaces);
    column += spaces;
    std::istringstream words(line);
    bool first = true;
    for (std::string word; words >> word; first = false) {
      if (!first && column + 1 + word.size() > line_width) {
        result += '\n' + std::string(indent, ' ');
        column = indent;
      } else if (!first) {
        result += ' ';
        ++column;
      }
      result += word;
      column += word.size();
    }
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
