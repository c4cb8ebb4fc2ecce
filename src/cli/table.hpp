/// \file
/// `Table`: aligned columns, and numbers in readable units.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// Rows of cells under a heading. A column is right-aligned when all its cells look like numbers.
class Table {
 public:
  explicit Table(std::vector<std::string> heading);

  /// \throws Error unless it has a cell for each column
  void row(std::vector<std::string> cells);

  /// The whole table, each line indented by two spaces and ended by a newline.
  [[nodiscard]] std::string text() const;
  /// The cells of each row, the heading first.
  [[nodiscard]] const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// `512 B`, `1.5 KiB`, `64.0 MiB`.
[[nodiscard]] std::string human_bytes(Index bytes);
/// `12.3 us`, `4.56 ms`, `7.89 s`.
[[nodiscard]] std::string human_seconds(double seconds);
/// `1.2e-07`.
[[nodiscard]] std::string human_error(double error);

}  // namespace ring_attention
