#include "diagnose/residual.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "diagnose/ring.hpp"

namespace ring_attention::diagnose {
namespace {

constexpr double huge = 1e25;  // float is about to overflow, and every code makes something else of it
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double nothing_said = -1;  // the error of a row that no code in float can have

/// A row of a wrong result that rounding moves further than this says nothing.
constexpr double unstable = 0.03;

double root_mean_square(std::span<const double> numbers) {
  double sum = 0;
  Index finite = 0;
  for (const double x : numbers)
    if (std::isfinite(x)) {
      sum += x * x;
      ++finite;
    }
  return finite > 0 ? std::sqrt(sum / static_cast<double>(finite)) : 0;
}

/// What codes return for the lse of no key: -inf, or a number that stands for it.
bool is_nothing(double lse) { return lse < -1e20; }

bool is_huge(double x) { return std::isfinite(x) && std::abs(x) > huge; }

bool is_finite(std::span<const double> row) {
  return std::ranges::all_of(row, [](double x) { return std::isfinite(x); });
}

/// What codes make of 0 / 0, where they guard the division.
bool is_zero(std::span<const double> row) {
  return std::ranges::all_of(row, [](double x) { return x == 0; });
}

/// The least errors, however small the simulated ones are.
double floor_of(Precision precision) {
  constexpr std::array floors{1e-12, 2e-6, 1e-3, 8e-3};
  return floors.at(static_cast<std::size_t>(precision));
}

/// The other right merge: of normalised results by their lse, which loses digits where lse is large.
Rules by_pieces() {
  Rules rules;
  rules.weights = weights_by_lse;
  return rules;
}

}  // namespace

double Residual::square() const {
  double sum = 0;
  for (const double error : rows) sum += std::min(error * error, 1.0);
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

double Residual::quantile(double share) const {
  if (rows.empty()) return 0;
  std::vector<double> sorted = rows;
  const auto at =
      sorted.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(sorted.size() - 1));
  std::ranges::nth_element(sorted, at);
  return *at;
}

Yardstick::Yardstick(const Problem& problem) : problem_(&problem) {
  for (const Array array : all_arrays) {
    const Tensor<double>& right = problem.right[array];
    for (Index head = 0; head < right.shape().heads; ++head) {
      const MatrixMap<const double> all = matrix(right.view(), 0, head);
      const double size = root_mean_square({all.data(), static_cast<std::size_t>(all.size())});
      sizes_[static_cast<std::size_t>(array)].push_back(size > 0 ? size : 1);
    }
  }
}

double Yardstick::size(Array array, Index head) const {
  return sizes_[static_cast<std::size_t>(array)][static_cast<std::size_t>(head)];
}

double Yardstick::row_error(Array array, Index head, std::span<const double> got,
                            std::span<const double> want) const {
  if (array == Array::lse && is_nothing(want[0])) return is_nothing(got[0]) ? 0 : infinite;
  if (std::ranges::any_of(want, is_huge)) return nothing_said;
  if (!is_finite(want)) {
    const bool is_nan = std::ranges::any_of(want, [](double x) { return std::isnan(x); });
    const bool fits = !is_finite(got) || std::ranges::any_of(got, is_huge) || (is_nan && is_zero(got));
    return fits ? 0 : infinite;
  }
  double sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return infinite;
    sum += (got[i] - want[i]) * (got[i] - want[i]);
  }
  return std::sqrt(sum / static_cast<double>(want.size())) /
         std::max(size(array, head), root_mean_square(want));
}

PerArray Yardstick::largest(const Arrays& got, const Arrays& want, const Arrays* rounded) const {
  PerArray most{};
  constexpr PerArray units{1, 1, 1, 1, 1};
  for (const Array array : all_arrays)
    of(most, array) = residual(got, want, std::array{array}, units, rounded).worst;
  return most;
}

PerArray Yardstick::tolerances(Precision precision) const {
  return tolerances_of({Rules(), by_pieces()}, precision, of_right_);
}

PerArray Yardstick::tolerances_of_states(Precision precision) const {
  return tolerances_of({Rules()}, precision, of_states_);
}

PerArray Yardstick::tolerances_of(const std::vector<Rules>& rings, Precision precision,
                                  std::map<Precision, PerArray>& known) const {
  if (const auto found = known.find(precision); found != known.end()) return found->second;
  PerArray most;
  most.fill(floor_of(precision));
  if (precision == Precision::half || precision == Precision::bf16)
    of(most, Array::lse) = floor_of(precision) / 2;  // it does not pass through a product
  for (const Rules& rules : rings) {
    const Forward forward = simulate_forward(*problem_, rules, precision);
    Arrays arrays = simulate_backward(*problem_, Rules(), forward, precision);
    for (const Array array : of_forward) arrays[array] = forward.arrays[array].clone();
    const PerArray errors = largest(arrays, problem_->right);
    for (const Array array : all_arrays) of(most, array) = std::max(of(most, array), of(errors, array));
  }
  for (double& error : most) error *= safety;
  return known[precision] = most;
}

Residual Yardstick::residual(const Arrays& got, const Arrays& want, std::span<const Array> which,
                             const PerArray& tolerances, const Arrays* rounded) const {
  Residual result;
  for (const Array array : which) {
    if (!got.has(array) || !want.has(array)) continue;
    const Shape& shape = got[array].shape();
    for (Index head = 0; head < shape.heads; ++head)
      for (Index token = 0; token < shape.seq; ++token) {
        const auto row = [&](const Arrays& arrays) { return arrays[array].view().row(0, head, token); };
        if (rounded != nullptr && !(row_error(array, head, row(*rounded), row(want)) <= unstable)) continue;
        const double error = row_error(array, head, row(got), row(want));
        if (error == nothing_said) continue;
        result.rows.push_back(error);
        result.worst = std::max(result.worst, error / of(tolerances, array));
      }
  }
  return result;
}

Precision precision_of(const Arrays& arrays, std::span<const Array> which) {
  constexpr Index enough = 16;  // of a few numbers many a type is the type by chance
  Precision coarsest = Precision::float64;
  for (const Array array : which) {
    if (!arrays.has(array)) continue;
    const std::span<const double> all = arrays[array].view().elements();
    if (std::ranges::count_if(all, [](double x) { return std::isfinite(x) && x != 0; }) < enough) continue;
    for (const Precision precision : all_precisions)
      if (std::ranges::all_of(all, [=](double x) { return !std::isfinite(x) || rounded(x, precision) == x; }))
        coarsest = std::max(coarsest, precision);
  }
  return coarsest;
}

}  // namespace ring_attention::diagnose
