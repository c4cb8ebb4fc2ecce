#include "cli/table.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

bool looks_like_a_number(const std::string& cell) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  return cell.empty() || cell == "-" || cell == "inf" || cell == "-inf" || cell == "nan" ||
         digit(cell.front()) ||
         (cell.size() > 1 && (cell.front() == '-' || cell.front() == '+') && digit(cell[1]));
}

}  // namespace

Table::Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }

void Table::row(std::vector<std::string> cells) {
  require(cells.size() == rows_.front().size(), "Table: a row has a cell for each column");
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> width(columns, 0);
  std::vector<bool> number(columns, true);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !looks_like_a_number(rows_[r][c])) number[c] = false;
    }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += "  " + (number[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string human_bytes(Index bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < units.size(); ++unit) value /= 1024;
  return format("%.1f %s", value, units[unit]);
}

std::string human_seconds(double seconds) {
  // A number that would be rounded to 1000 goes to the next unit.
  if (seconds < 999.5e-6) return format("%.3g us", seconds * 1e6);
  if (seconds < 999.5e-3) return format("%.3g ms", seconds * 1e3);
  return format(seconds < 999.5 ? "%.3g s" : "%.0f s", seconds);
}

std::string human_error(double error) { return format("%.1e", error); }

}  // namespace ring_attention
