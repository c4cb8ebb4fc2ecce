// Lesson 02: the merges of normalised results where one outweighs the other by more than exp can hold. (Otherwise: the
// lesson's own checks.)

#include "02_online_softmax/lse_forms.hpp"

#include <gtest/gtest.h>

namespace ring_attention::lesson {
namespace {

template <class T>
void expect_the_heavier(T gap) {
  const Result<T> light{2, 1}, heavy{3, 1 + gap};
  for (const auto form : {log1p_form<T>, sigmoid_form<T>})
    for (const Result<T>& got : {form(light, heavy), form(heavy, light)}) {
      EXPECT_EQ(got.out, heavy.out);
      EXPECT_EQ(got.lse, heavy.lse);
    }
}

TEST(LseForms, SurviveAFarLargerPiece) {
  expect_the_heavier<float>(89);
  expect_the_heavier<double>(710);
}

}  // namespace
}  // namespace ring_attention::lesson
