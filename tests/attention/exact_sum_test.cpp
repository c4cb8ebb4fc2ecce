// ExactSum: the state after any adds and merges is a function of the set of terms; limits, accuracy, and the vector form.

#include "ring_attention/attention/exact/sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan = std::numeric_limits<float>::quiet_NaN();

struct Term {
  std::vector<float> x;
  double exponent;
};

/// A row of sums with its memory.
class Row {
 public:
  explicit Row(const ExactFormat& format)
      : format_(format), words_(static_cast<std::size_t>(format.words())) {}
  ExactSum sum() { return {format_, words_.data()}; }
  [[nodiscard]] std::vector<float>& words() { return words_; }

  /// Level, digits and carried digits: all but the number of terms.
  [[nodiscard]] std::vector<std::uint32_t> state() const {
    std::vector<std::uint32_t> words(words_.size());
    std::ranges::transform(words_, words.begin(),
                           [](float word) { return std::bit_cast<std::uint32_t>(word); });
    words.erase(words.begin() + 1);
    return words;
  }
  /// What every reader of the row sees.
  std::vector<double> seen() {
    std::vector<double> all{sum().empty() ? 0 : sum().unit()};
    for (Index c = 0; c < format_.dim; ++c) all.push_back(sum().digits(c));
    return all;
  }

 private:
  ExactFormat format_;
  std::vector<float> words_;
};

/// Terms of very different size, some of them exactly between two digits, some zero, some near the ends of float.
std::vector<Term> random_terms(Dice& dice, Index count, Index dim) {
  std::vector<Term> terms;
  for (Index i = 0; i < count; ++i) {
    Term term{std::vector<float>(static_cast<std::size_t>(dim)), static_cast<double>(dice.between(-60, 60))};
    const auto size = static_cast<int>(dice.one_in(6) ? dice.between(-149, 103) : dice.between(-40, 0));
    for (float& number : term.x)
      number = dice.one_in(8) ? 0.0F
                              : std::ldexp(static_cast<float>(dice.between(-(1 << 23), 1 << 23)),
                                           size - static_cast<int>(dice.one_in(5) ? dice.between(0, 50) : 0));
    terms.push_back(std::move(term));
  }
  return terms;
}

Row sum_of(const std::vector<Term>& terms, const ExactFormat& format) {
  Row row(format);
  for (const Term& term : terms) row.sum().add(term.x, term.exponent);
  return row;
}

/// The terms in a random order, some added to one row, merged two rows at a time at random.
Row random_tree(Dice& dice, std::vector<Term> terms, const ExactFormat& format) {
  std::vector<Row> rows(1, Row(format));
  while (!terms.empty()) {
    std::swap(terms[static_cast<std::size_t>(dice.between(0, std::ssize(terms) - 1))], terms.back());
    if (dice.one_in(2)) rows.emplace_back(format);
    rows[static_cast<std::size_t>(dice.between(0, std::ssize(rows) - 1))].sum().add(terms.back().x,
                                                                                    terms.back().exponent);
    terms.pop_back();
  }
  while (rows.size() > 1) {
    std::swap(rows[static_cast<std::size_t>(dice.between(0, std::ssize(rows) - 1))], rows.back());
    Row last = rows.back();
    rows.pop_back();
    rows[static_cast<std::size_t>(dice.between(0, std::ssize(rows) - 1))].sum().merge(last.sum());
  }
  return rows[0];
}

TEST(ExactSum, StateIsAFunctionOfTheTermsInRandomTrees) {
  for_each_case(1000, [](Dice& dice, Index) {
    const Index dim = dice.between(1, 9);
    const std::vector<Term> terms = random_terms(dice, dice.between(0, 40), dim);
    const ExactFormat narrow{dim}, wide{dim, true};
    Row in_order = sum_of(terms, narrow);
    EXPECT_EQ(random_tree(dice, terms, narrow).state(), in_order.state());
    EXPECT_EQ(random_tree(dice, terms, wide).seen(), in_order.seen());
  });
}

TEST(ExactSum, StateIsTheSumOfTheTermsDigits) {
  for_each_case(200, [](Dice& dice, Index) {
    const std::vector<Term> terms = random_terms(dice, dice.between(1, 40), 3);
    Row row = sum_of(terms, {3});
    const double unit = row.sum().unit();
    for (std::size_t c = 0; c < 3; ++c) {
      double digits = 0;  // fewer than 2^53
      for (const Term& term : terms) {
        const double y = term.x[c] * std::exp2(term.exponent - unit - 22), high = std::rint(y);
        digits += high * 0x1p22 + std::rint((y - high) * 0x1p22);
      }
      EXPECT_EQ(row.sum().digits(static_cast<Index>(c)), digits);
    }
  });
}

/// Terms whose digits are the largest, 2^21, with equal signs and with unequal ones.
const std::vector<float> largest_terms{2097150.5F, 2097151.5F, -2097150.5F, -2097151.5F};

/// `count` times the same term in `rows` rows, which are merged one after the other, or as a tree.
double sum_of_equal(float term, Index count, Index rows, bool tree, bool wide) {
  std::vector<Row> all(static_cast<std::size_t>(rows), Row({1, wide}));
  for (Index i = 0; i < count; ++i) all[static_cast<std::size_t>(i * rows / count)].sum().add({&term, 1});
  for (std::size_t step = 1; step < all.size(); step *= tree ? 2 : all.size())
    for (std::size_t i = tree ? 0 : 1; i + (tree ? step : 0) < all.size(); i += tree ? 2 * step : 1)
      if (tree)
        all[i].sum().merge(all[i + step].sum());
      else
        all[0].sum().merge(all[i].sum());
  return all[0].sum().digits(0) * std::exp2(all[0].sum().unit());
}

TEST(ExactSum, ManyLargestTermsDoNotOverflow) {
  for (const float term : largest_terms)
    for (const bool wide : {false, true})
      for (const Index count : {1022, 1023, 1024, 5000, 100000})
        for (const Index rows : {1, 2, 3, 7, 100}) {
          if (!wide && count > ExactFormat::most_terms) continue;
          const double want = static_cast<double>(count) * double{term};
          EXPECT_EQ(sum_of_equal(term, count, rows, false, wide), want) << count << ", rows " << rows;
          EXPECT_EQ(sum_of_equal(term, count, rows, true, wide), want) << count << ", rows " << rows;
        }
}

TEST(ExactSum, ManyTermsOfRandomSizeInAWideRow) {
  for_each_case(5, [](Dice& dice, Index) {
    const std::vector<Term> terms = random_terms(dice, 3000, 2);
    const ExactFormat wide{2, true};
    EXPECT_EQ(random_tree(dice, terms, wide).seen(), sum_of(terms, wide).seen());
  });
}

// The mutant: a row without carried words that does not count its terms, as 32-bit digits of a machine add. Its bits are the
// same in any grouping, and wrong: only the size of the sum shows it.
TEST(ExactSum, WithoutASecondLevelTheSameBitsAreWrong) {
  const std::uint32_t high = sum_of({{{largest_terms[0]}, 0}}, {1}).state()[1];
  const auto digits = [&](Index count, Index rows) {
    std::vector<std::uint32_t> sums(static_cast<std::size_t>(rows));
    for (Index i = 0; i < count; ++i) sums[static_cast<std::size_t>(i * rows / count)] += high;
    return static_cast<std::int32_t>(std::accumulate(sums.begin(), sums.end(), std::uint32_t{0}));
  };
  EXPECT_EQ(digits(1025, 1), digits(1025, 3));
  EXPECT_LT(digits(1025, 1), 0);
  EXPECT_GT(digits(1023, 1), 0);
}

TEST(ExactSum, A1024thTermNeedsAWideRow) {
  const std::span largest(largest_terms.data(), 1);
  Row narrow({1}), other({1});
  for (int i = 0; i < 1023; ++i) narrow.sum().add(largest);
  EXPECT_THROW(narrow.sum().add(largest), Error);
  other.sum().add(largest);
  EXPECT_THROW(other.sum().merge(narrow.sum()), Error);
  EXPECT_THROW(Row({1}).sum().merge(Row({1, true}).sum()), Error);
  EXPECT_THROW(Row({2}).sum().add(largest), Error);
}

TEST(ExactSum, NotFiniteStaysInAnyOrder) {
  for (const float wrong : {nan, -nan, infinity, -infinity})
    for (const bool wide : {false, true})
      for (const bool first : {false, true}) {
        const ExactFormat format{2, wide};
        const std::vector<float> bad = first ? std::vector{wrong, 1.0F} : std::vector{1.0F, wrong},
                                 good{0x1p100F, 3};
        Row before(format), after(format), merged(format), into(format);
        before.sum().add(bad);
        before.sum().add(good, 100);
        after.sum().add(good, 100);
        after.sum().add(bad);
        merged.sum().add(good, 100);
        merged.sum().merge(before.sum());
        into.sum().merge(before.sum());
        into.sum().merge(merged.sum());
        into.sum().add(good);
        for (Row* row : {&before, &after, &merged, &into}) {
          std::vector<float> values(2);
          row->sum().values(values);
          EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[1])) << wrong << " first " << first;
        }
      }
}

TEST(ExactSum, RowsWithoutTermsAreZeroAndChangeNothing) {
  for (const bool wide : {false, true}) {
    Row none({2, wide}), some({2, wide});
    std::vector<float> values{1, 1};
    none.sum().values(values);
    EXPECT_EQ(values, (std::vector<float>{0, 0}));
    EXPECT_TRUE(none.sum().empty());
    some.sum().add(std::vector<float>{1.5F, -2}, 3);
    const std::vector<std::uint32_t> before = some.state();
    some.sum().merge(none.sum());
    EXPECT_EQ(some.state(), before);
    none.sum().merge(some.sum());
    EXPECT_EQ(none.seen(), some.seen());
    none.sum().values(values);
    EXPECT_EQ(values, (std::vector<float>{12, -16}));
  }
}

TEST(ExactSum, AZeroIsATermAndAnEmptyRowIsNot) {
  Row zero({1}), small({1});
  zero.sum().add(std::vector<float>{0}, 300);
  small.sum().add(std::vector<float>{1});
  EXPECT_FALSE(zero.sum().empty());
  zero.sum().merge(small.sum());  // its level is that of 2^(300 - 100)
  EXPECT_EQ(zero.sum().digits(0), 0);
}

TEST(ExactSum, ExponentsAtTheirLimits) {
  for (const double huge : {2e9, 0x1p40, 1e300}) {
    Row row({1});
    row.sum().add(std::vector<float>{1}, huge);
    const std::vector<std::uint32_t> alone = row.state();
    row.sum().add(std::vector<float>{1}, -huge);
    row.sum().add(std::vector<float>{std::numeric_limits<float>::max()}, 1000);
    EXPECT_EQ(row.state(), alone);
    Row tiny({1});
    tiny.sum().add(std::vector<float>{1}, -huge);
    EXPECT_FALSE(tiny.sum().empty());
    EXPECT_EQ(tiny.sum().digits(0) * std::exp2(tiny.sum().unit() + 2e9), 1) << huge;
  }
  for (const float small : {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()}) {
    Row row({1});
    row.sum().add(std::vector<float>{small}, 140);  // of numbers below 2^-100 fewer digits are kept
    const double got = row.sum().digits(0) * std::exp2(row.sum().unit());
    EXPECT_TRUE(std::abs(got - std::ldexp(double{small}, 140)) <= 0x1p17) << small;
  }
}

TEST(ExactSum, ErrorIsWithinItsBound) {
  for_each_case(200, [](Dice& dice, Index) {
    const Index count = dice.between(1, 1000);
    std::vector<Term> terms;
    for (Index i = 0; i < count; ++i)
      terms.push_back({{static_cast<float>(dice.real(-1, 1)), static_cast<float>(dice.real(-1, 1))},
                       static_cast<double>(dice.between(-30, 0))});
    std::vector<double> want(2);
    double top = 0;
    for (const Term& term : terms)
      for (std::size_t c = 0; c < 2; ++c) {
        const double x = term.x[c] * std::exp2(term.exponent);
        want[c] += x;
        top = std::max(top, std::abs(x));
      }
    Row row = sum_of(terms, {2});
    for (std::size_t c = 0; c < 2; ++c) {
      const double got = row.sum().digits(static_cast<Index>(c)) * std::exp2(row.sum().unit());
      EXPECT_TRUE(std::abs(got - want[c]) <= static_cast<double>(count) * 0x1p-22 * top);
    }
  });
}

TEST(ExactSum, AColumn1000TimesLargerCostsTheOthersDigits) {
  double with = 0, without = 0;
  for_each_case(100, [&](Dice& dice, Index) {
    Row row({2}), alone({1});
    double want = 0;
    for (int i = 0; i < 8; ++i) {
      const auto x = static_cast<float>(dice.real(0.5, 1));
      const auto exponent = static_cast<double>(dice.between(0, 21));
      want += double{x} * std::exp2(exponent);
      row.sum().add(std::vector<float>{1000, x}, exponent);
      alone.sum().add(std::vector<float>{x}, exponent);
    }
    with = std::max(with, std::abs(row.sum().digits(1) * std::exp2(row.sum().unit()) / want - 1));
    without = std::max(without, std::abs(alone.sum().digits(0) * std::exp2(alone.sum().unit()) / want - 1));
  });
  EXPECT_TRUE(without <= 5e-7) << without;
  EXPECT_TRUE(with <= 5e-4) << with;
  EXPECT_TRUE(with > 1e-5) << "better than exact/sum.hpp says: " << with;
}

/// The vector form adds a row with the exponent 0 to each of some rows of sums.
TEST(ExactSum, VectorFormHasTheSameBits) {
  for (const Isa isa : available_isas())
    for_each_case(200, [&](Dice& dice, Index) {
      const Index dim = dice.between(1, 40), rows = dice.between(1, 5);
      const ExactFormat format{dim, dice.one_in(2)};
      std::vector<Row> want(static_cast<std::size_t>(rows), Row(format));
      std::vector<float> got(static_cast<std::size_t>(rows * format.words()));
      for (int step = 0; step < 12; ++step) {
        std::vector<float> all;
        for (Term& term : random_terms(dice, rows, dim)) {
          if (dice.one_in(40)) term.x[0] = dice.of({nan, -infinity, infinity});
          all.insert(all.end(), term.x.begin(), term.x.end());
        }
        for (std::size_t row = 0; row < want.size(); ++row)
          want[row].sum().add(
              std::span(all).subspan(row * static_cast<std::size_t>(dim), static_cast<std::size_t>(dim)));
        kernels<float>(isa).add_exact_terms({all.data(), got.data(), rows, dim, format.words()});
      }
      for (std::size_t row = 0; row < want.size(); ++row) {
        if (std::isnan(want[row].sum().digits(0))) {
          EXPECT_TRUE(std::isnan(ExactSum(format, &got[row * want[0].words().size()]).digits(0)));
          continue;
        }
        for (std::size_t i = 0; i < want[row].words().size(); ++i)
          EXPECT_EQ(std::bit_cast<std::uint32_t>(got[row * want[row].words().size() + i]),
                    std::bit_cast<std::uint32_t>(want[row].words()[i]))
              << name_of(isa) << ", dim " << dim << ", word " << i;
      }
    });
}

TEST(ExactMemory, AddsRowsOfSums) {
  const ExactFormat format{2, true};
  const ExactMemory memory(format);
  std::vector<float> sums(static_cast<std::size_t>(2 * format.words())), terms(sums.size());
  const auto row = [&](std::vector<float>& array, Index i) {
    return ExactSum(format, &array[static_cast<std::size_t>(i * format.words())]);
  };
  row(sums, 0).add(std::vector<float>{1, 2});
  row(terms, 0).add(std::vector<float>{10, 20});
  row(terms, 1).add(std::vector<float>{100, 200});
  memory.add(sums, terms);
  const Tensor<float> values =
      exact_values(format, View<const float>(sums.data(), {1, 1, 2, format.words()}));
  EXPECT_TRUE(std::ranges::equal(values.view().elements(), std::vector<float>{11, 22, 100, 200}));
  EXPECT_THROW(memory.add(std::span(sums).first(3), std::span(terms).first(3)), Error);
}

}  // namespace
}  // namespace ring_attention::test
