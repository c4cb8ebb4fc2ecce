#include "ring_attention/attention/exact/sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr int bits = exact_digit_bits;
constexpr ExactWord not_finite = std::numeric_limits<int>::max();

constexpr const char* too_many = "ExactSum: more than 1023 terms in a row that is not wide";

// What a wide row counts after a carry: a digit is then below 2^24, as the digits of 8 terms are.
constexpr ExactWord terms_after_carry = 8;
constexpr int kept_bits = 24;

/// The level of a term, as it is stored. \param largest  |x|
ExactWord level_of(float largest, double exponent) {
  if (!std::isfinite(largest)) return not_finite;
  const int e = largest > 0 ? std::max(std::ilogb(largest) + 1, -100) : -100;  // |x| < 2^e
  return exact_level_0 + static_cast<int>(std::floor((exponent + e) / bits));
}

/// \returns a number that is not finite if there is one
float largest_of(std::span<const float> x) {
  float largest = 0;
  for (const float y : x) {
    if (!std::isfinite(y)) return y;
    largest = std::max(largest, std::abs(y));
  }
  return largest;
}

/// A row that is only read: a view has no other form.
ExactSum read(const ExactFormat& format, const float* words) {
  return {format, const_cast<float*>(words)};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

}  // namespace

void ExactSum::make_room() {
  if (format_.wide && terms() >= ExactFormat::terms_at_once) carry();
  require(terms() < ExactFormat::most_terms, too_many);
}

void ExactSum::add(std::span<const float> term, double exponent) {
  require(std::ssize(term) == format_.dim, "ExactSum: a term has as many elements as the row");
  exponent = std::clamp(exponent, -ExactFormat::largest_exponent, ExactFormat::largest_exponent);
  const ExactWord own = level_of(largest_of(term), exponent);
  make_room();
  raise(own);
  ++terms();
  if (level() == not_finite || level() - own >= 2) return;  // its digits are 0
  const auto power = static_cast<int>(exponent - static_cast<double>(level() - exact_level_0) * bits);
  for (Index c = 0; c < format_.dim; ++c) {
    const double y = std::ldexp(term[static_cast<std::size_t>(c)], power), whole = std::rint(y);
    part(0)[c] += static_cast<int>(whole);
    part(1)[c] += static_cast<int>(std::rint((y - whole) * (1 << bits)));
  }
}

void ExactSum::merge(const ExactSum& other) {
  require(format_.dim == other.format_.dim && (format_.wide || !other.format_.wide),
          "ExactSum: a row merges with one of the same length that is no wider");
  if (other.empty()) return;
  if (format_.wide && !empty()) carry();
  raise(other.level());
  terms() += other.terms();
  require(terms() <= ExactFormat::most_terms, too_many);
  const ExactWord lower = level() - other.level();
  const auto add = [this](ExactWord* sum, const ExactWord* term) {
    for (Index c = 0; c < format_.dim; ++c) sum[c] += term[c];
  };
  for (Index i = 0; i < other.parts() && lower <= 1; i += 2) {
    if (lower == 0) add(part(i), other.part(i));
    add(part(i + 1), other.part(lower == 0 ? i + 1 : i));
  }
  if (format_.wide) carry();
}

void ExactSum::merge(const float* other) { merge(read(format_, other)); }

/// The digits of a row that is not finite have no meaning.
void ExactSum::raise(ExactWord to) {
  const ExactWord before = level();
  if (to <= before) return;
  level() = to;
  for (Index i = 0; i < parts(); i += 2) {
    ExactWord *high = part(i), *low = part(i + 1);
    for (Index c = 0; c < format_.dim; ++c) {
      low[c] = to - before == 1 ? high[c] : 0;
      high[c] = 0;
    }
  }
}

void ExactSum::carry() {
  for (Index i = 0; i < 2; ++i) {
    ExactWord *digit = part(i), *carried = part(i + 2);
    for (Index c = 0; c < format_.dim; ++c) {
      carried[c] += digit[c] >> kept_bits;  // rounds down
      digit[c] &= (1 << kept_bits) - 1;
    }
  }
  terms() = terms_after_carry;
}

double ExactSum::digits(Index c) const {
  if (level() == not_finite) return std::numeric_limits<double>::quiet_NaN();
  const auto whole = [&](Index i) {
    const Index carried = format_.wide ? part(i + 2)[c] : 0;
    return static_cast<double>(carried * (Index{1} << kept_bits) + part(i)[c]);
  };
  return whole(0) * (1 << bits) + whole(1);
}

double ExactSum::unit() const { return static_cast<double>(level() - exact_level_0 - 1) * bits; }

void ExactSum::values(std::span<float> to) const {
  for (std::size_t c = 0; c < to.size(); ++c)
    to[c] = empty() ? 0 : static_cast<float>(digits(static_cast<Index>(c)) * std::exp2(unit()));
}

void ExactMemory::add(std::span<float> sum, std::span<const float> term) const {
  const auto words = static_cast<std::size_t>(format_.words());
  require(sum.size() == term.size() && sum.size() % words == 0, "ExactMemory: whole rows");
  for (std::size_t at = 0; at < sum.size(); at += words) ExactSum(format_, &sum[at]).merge(&term[at]);
}

Tensor<float> exact_values(const ExactFormat& format, View<const float> rows) {
  const Shape& shape = rows.shape();
  Tensor<float> values({shape.batch, shape.heads, shape.seq, format.dim});
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s)
        read(format, rows.row(b, h, s).data()).values(values.view().row(b, h, s));
  return values;
}

}  // namespace ring_attention
