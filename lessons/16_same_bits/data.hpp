// Lesson 16, beside the idea: small problems on which a wrong sum shows, and their results in double.
#pragma once

#include <numbers>
#include <random>
#include <string>

#include "ring_attention/attention/mask.hpp"

namespace ring_attention::lesson_16 {

constexpr Index tokens = 131, dim = 16, tile = 16;  // the last tile has 3 tokens

/// out, lse and dV, row by row.
struct Rows {
  std::vector<float> out, lse, dv;
};

/// One head.
struct Data {
  /// \param late     scores rise and fall along the tiles of keys by so many powers of 2
  /// \param lowered  by which all scores are lowered, in powers of 2
  /// \param decades  a row of V or of dO is multiplied by 10^x, x between these two
  Data(std::string its_name, std::uint64_t seed, const Mask& its_mask, float late = 0, float lowered = 0,
       Interval decades = {0, 0})
      : name(std::move(its_name)), mask(its_mask), ramp(number_of_tiles, -lowered) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k, &v, &grad_out}) {
      x->resize(tokens * dim);
      for (float& number : *x) number = normal(random);
    }
    const double scale = std::numbers::log2e / std::sqrt(double{dim});
    for (float& number : q) number *= static_cast<float>(scale);
    for (std::size_t i = 0; i < ramp.size(); ++i)
      ramp[i] += late * (2 * static_cast<float>(i) / (number_of_tiles - 1) - 1);
    std::ranges::shuffle(ramp, random);
    std::uniform_real_distribution<double> exponent(static_cast<double>(decades.begin),
                                                    static_cast<double>(decades.end));
    for (auto* x : {&v, &grad_out})
      for (Index row = 0; row < tokens; ++row) {
        const auto factor = static_cast<float>(std::pow(10.0, exponent(random)));
        for (float& number : std::span(*x).subspan(at(row), dim)) number *= factor;
      }
  }

  static std::size_t at(Index row) { return static_cast<std::size_t>(row * dim); }
  [[nodiscard]] std::span<const float> value(Index key) const { return std::span(v).subspan(at(key), dim); }
  [[nodiscard]] std::span<const float> gradient(Index query) const {
    return std::span(grad_out).subspan(at(query), dim);
  }

  /// In units of log 2.
  template <class T = float>
  [[nodiscard]] T score(Index query, Index key) const {
    T y = 0;
    for (std::size_t c = 0; c < dim; ++c) y += T{q[at(query) + c]} * T{k[at(key) + c]};
    return y + T{ramp[static_cast<std::size_t>(key / tile)]};
  }

  std::string name;
  Mask mask;
  std::vector<float> q, k, v, grad_out;  // [tokens][dim]

 private:
  static constexpr std::size_t number_of_tiles = (tokens + tile - 1) / tile;
  std::vector<float> ramp;  // of each tile of keys
};

/// On some of them most wrong sums are right.
inline std::vector<Data> all_data(std::uint64_t seed) {
  return {{"N(0, 1)", seed, {}},
          {"causal", seed + 1, Mask::causal()},
          {"late maxima", seed + 2, {}, 20},
          {"V over decades", seed + 3, {}, 0, 0, {-30, 20}},
          {"low scores, causal", seed + 4, Mask::causal(), 0, 150},
          {"window of 40", seed + 5, {.left = 39, .right = 0}}};
}

/// The largest error of an array, relative to its largest number; NaN where one is NaN.
inline double error_of(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    if (!(off <= error)) error = off;
    if (std::isnan(error)) return error;
    largest = std::max(largest, std::abs(want[i]));
  }
  return error / largest;
}

/// The largest error of out, lse and dV against the definition, in double.
inline double error_of(const Rows& got, const Data& data) {
  std::vector<double> out(tokens * dim), lse, dv(tokens * dim);
  for (Index i = 0; i < tokens; ++i) {
    std::vector<Index> keys;
    std::vector<double> y;
    for (Index j = 0; j < tokens; ++j) {
      if (!data.mask.allowed(i, j)) continue;
      keys.push_back(j);
      y.push_back(data.score<double>(i, j));
    }
    const double m = *std::ranges::max_element(y);
    double l = 0;
    for (const double score : y) l += std::exp2(score - m);
    lse.push_back((m + std::log2(l)) * std::numbers::ln2);
    for (std::size_t n = 0; n < keys.size(); ++n)
      for (std::size_t c = 0; c < dim; ++c) {
        const double p = std::exp2(y[n] - m) / l;
        out[Data::at(i) + c] += p * double{data.value(keys[n])[c]};
        dv[Data::at(keys[n]) + c] += p * double{data.gradient(i)[c]};
      }
  }
  const double first = std::max(error_of(got.out, out), error_of(got.lse, lse)), of_dv = error_of(got.dv, dv);
  return of_dv <= first ? first : of_dv;
}

}  // namespace ring_attention::lesson_16
