#include "cli/option_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr std::size_t line_width = 100;

std::optional<Index> parsed_whole_number(const std::string& text) {
  Index number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

/// ` of at least 1 and at most 8`
std::string in_words(Bounds bounds) {
  const bool has_least = bounds.least != std::numeric_limits<Index>::min();
  const bool has_most = bounds.most != std::numeric_limits<Index>::max();
  std::string text;
  if (has_least) text += " of at least " + std::to_string(bounds.least);
  if (has_most) text += (has_least ? " and at most " : " of at most ") + std::to_string(bounds.most);
  return text;
}

}  // namespace

Index whole_number(const std::string& flag, const std::string& text, Bounds bounds) {
  const std::optional<Index> number = parsed_whole_number(text);
  if (!number || *number < bounds.least || *number > bounds.most)
    throw InputError(flag + " must be a whole number" + in_words(bounds) + ", not '" + text + "'");
  return *number;
}

double finite_number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(number))
    throw InputError(flag + " must be a finite number, not '" + text + "'");
  return number;
}

std::vector<Index> whole_numbers(const std::string& flag, const std::string& text, const std::string& letters,
                                 Bounds bounds) {
  const auto wanted = std::count(letters.begin(), letters.end(), ',') + 1;
  std::vector<Index> numbers;
  std::istringstream parts(text + ",");  // getline does not see an empty last part
  for (std::string part; std::getline(parts, part, ',');) {
    const std::optional<Index> number = parsed_whole_number(part);
    if (number && *number >= bounds.least && *number <= bounds.most) numbers.push_back(*number);
  }
  const auto commas = std::count(text.begin(), text.end(), ',');
  if (static_cast<std::ptrdiff_t>(numbers.size()) != wanted || commas + 1 != wanted)
    throw InputError(flag + " wants " + letters + ": " + std::to_string(wanted) + " whole numbers" +
                     in_words(bounds) + " with commas between them, not '" + text + "'");
  return numbers;
}

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
