// Every device with every way to share an attention and every term of a score: the same properties. A new engine is a row of
// cpu_ways() or gpu_ways(), a new way to share a row of `teams`, a new term a line of add_terms() or every_scoring().

#include "conformance/properties.hpp"

namespace ring_attention::test {
namespace {

template <class T>
class Conformance : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Conformance, Types);

// A device meets each mask in every second of the lengths: there is an odd number of masks. In the long test, in all.
TYPED_TEST(Conformance, EveryDeviceWithEveryMask) { expect_every_case(cpu_ways<TypeParam>(), 2); }

TYPED_TEST(Conformance, RandomProblems) { expect_random_problems(cpu_ways<TypeParam>(), 150); }

TYPED_TEST(Conformance, OneRankIsTheSingleDevice) { expect_one_rank<TypeParam>(); }

TYPED_TEST(Conformance, ThePairsThatTakePart) { expect_the_pairs(cpu_ways<TypeParam>()); }

TYPED_TEST(Conformance, WhatARankHolds) {
  expect_that_it_holds_no_more<TypeParam>();
  if constexpr (std::is_same_v<TypeParam, float>) expect_that_it_holds_no_more<float, Bf16>();
}

TYPED_TEST(Conformance, WhatIsNotFiniteStaysVisible) {
  expect_visible(cpu_ways<TypeParam>());
  expect_hidden_rows(cpu_ways<TypeParam>());
}

}  // namespace
}  // namespace ring_attention::test
