// The picture of lesson 16 in numbers: 6, 7 and 300 in base 10, in two orders.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention::lesson_16 {

/// An integer that counts units: of 1, and of 10 from the first term of three places on.
inline double with_moving_unit(const std::vector<double>& terms) {
  double unit = 1, count = 0;
  for (const double term : terms) {
    if (term >= 100 && unit == 1) {
      unit = 10;
      count = std::rint(count / 10);
    }
    count += std::rint(term / unit);
  }
  return count * unit;
}

/// Two digits of a fixed grid; the level of a term is the smallest J with term < 5 * 10^J.
inline std::string with_digits(const std::vector<double>& terms) {
  int level = 0, high = 0, low = 0;
  for (const double term : terms) {
    int own = 0;
    while (term >= 5 * std::pow(10, own)) ++own;
    for (; level < own; ++level) {
      low = high;
      high = 0;
    }
    const double z = term / std::pow(10, level), digit = std::rint(z);
    high += static_cast<int>(digit);
    low += static_cast<int>(std::rint((z - digit) * 10));
  }
  return std::to_string(high) + " " + std::to_string(low);
}

inline void show_decimal(Lesson& lesson) {
  Table table({"order", "integer, moving unit", "digits: hundreds tens"});
  const std::vector<std::vector<double>> orders{{6, 7, 300}, {300, 6, 7}};
  for (const auto& terms : orders)
    table.row({format("%.0f %.0f %.0f", terms[0], terms[1], terms[2]),
               format("%.0f", with_moving_unit(terms)), with_digits(terms)});
  lesson.print("decimal", table);
  lesson.check("the integer depends on the order, the digits do not",
               with_moving_unit(orders[0]) != with_moving_unit(orders[1]) &&
                   with_digits(orders[0]) == with_digits(orders[1]));
}

}  // namespace ring_attention::lesson_16
