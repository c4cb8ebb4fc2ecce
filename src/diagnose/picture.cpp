#include "diagnose/picture.hpp"

#include <cmath>

#include "diagnose/parts.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

/// '.' right in all heads, 'x' wrong in all heads, 'o' wrong in some; a space between the tokens of two ranks.
std::string tokens_line(const Evidence& one, Array array, double tolerance) {
  const Problem& problem = *one.problem;
  const Tensor<double>&got = (*one.got)[array], &right = problem.right[array];
  std::string line;
  for (int rank = 0; rank < problem.job.ranks; ++rank) {
    if (rank > 0) line += ' ';
    for (const Index token : positions(problem.job.tokens_of(rank, problem.the_case.tokens))) {
      Index wrong = 0;
      for (Index head = 0; head < got.shape().heads; ++head) {
        const double error = one.yardstick->row_error(array, head, got.view().row(0, head, token),
                                                      right.view().row(0, head, token));
        if (!(error <= tolerance)) ++wrong;
      }
      line += wrong == 0 ? '.' : wrong == got.shape().heads ? 'x' : 'o';
    }
  }
  return line;
}

/// Rows of factors, or why there are none.
std::string parts_lines(const Evidence& one, Array array) {
  constexpr double small = 1e-2;
  const Parts parts = parts_of(one, array);
  if (!(parts.left <= small)) return "";
  const bool all_one =
      parts.factors.unaryExpr([](double x) { return std::isnan(x) || std::abs(x - 1) < small ? 0.0 : 1.0; })
          .sum() == 0;
  if (all_one) return "";
  std::string text =
      "  " + name(array) + " counts the parts that ranks contribute with these factors (right: 1):\n";
  for (Index row = 0; row < parts.factors.rows(); ++row) {
    text += format("    rank %d:", static_cast<int>(row));
    for (const double factor : parts.factors.row(row))
      text += std::isnan(factor) ? "     ." : format(" %5.2f", factor);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string picture_of(const Evidence& one, Precision precision) {
  const PerArray tolerances = one.yardstick->tolerances(precision);
  std::string text = "Where, in the case " + one.problem->the_case.name +
                     " (a character a token, rank by rank; . right, x wrong, o wrong in some heads):\n";
  for (const Array array : all_arrays)
    if (one.got->has(array))
      text += format("  %-3s  ", name(array).c_str()) + tokens_line(one, array, of(tolerances, array)) + "\n";
  for (const Array array : {Array::out, Array::dq, Array::dk, Array::dv}) {
    if (!one.got->has(array) || one.problem->job.ring() < 2) continue;
    const bool finite =
        std::ranges::all_of((*one.got)[array].view().elements(), [](double x) { return std::isfinite(x); });
    if (finite) text += parts_lines(one, array);
  }
  return text;
}

}  // namespace ring_attention::diagnose
