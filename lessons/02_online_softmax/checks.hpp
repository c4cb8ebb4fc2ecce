// Lesson 02: the state after each score, and the checks that any order of merging gives the same.
#pragma once

#include LESSON_IDEA

#include <random>
#include <vector>

#include "common/lesson.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention::lesson {

using Move = float (*)(float from, float to);

// The mistake that is made most: the maximum grows and the sum stays.
inline float stay(float, float) { return 1; }

// The library's state, score by score.
inline SoftmaxState<float> library_state(std::span<const float> x) {
  SoftmaxState<float> state;
  for (const float score : x) state = merge(state, softmax_state(score));
  return state;
}

// A row of scores that is cut at random places.
struct Row {
  Row(std::uint64_t seed, Index length) : x(Shape{1, 1, length, 1}), random(seed) {
    fill_random(x.view(), {seed, 0, 16, 20});  // one in 16 up to 35
    x.data()[0] = negative_infinity<float>;    // and a masked one
  }
  // The states of some pieces that make up the row; a piece may be empty.
  std::vector<State<float>> pieces(Move move) {
    std::vector<std::size_t> ends{0, x.view().elements().size()};
    for (auto n = random() % 40; n > 0; --n) ends.push_back(random() % (ends[1] + 1));
    std::sort(ends.begin(), ends.end());
    std::vector<State<float>> states;
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const auto piece = x.view().elements().subspan(ends[i - 1], ends[i] - ends[i - 1]);
      states.push_back(online_state<float>(piece, move));
    }
    return states;
  }
  Tensor<float> x;
  std::mt19937_64 random;
};

// Associative (but for rounding), commutative and with an identity (to the bit): the order of merging is free.
inline void check_monoid(Lesson& lesson, Row& row, Move move) {
  const auto same_bits = [](const State<float>& a, const State<float>& b) {
    return a.m == b.m && a.l == b.l;
  };
  const SoftmaxState<float> all = library_state(row.x.view().elements());
  double spread = 0;
  bool same_m = true, commutes = true, identity = true;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<State<float>> states = row.pieces(move);
    while (states.size() > 1) {  // merges any two, until one is left
      std::swap(states[row.random() % states.size()], states.back());
      const State<float> last = states.back();
      states.pop_back();
      State<float>& other = states[row.random() % states.size()];
      commutes = commutes && same_bits(merged(other, last), merged(last, other));
      identity = identity && same_bits(merged(last, {}), last) && same_bits(merged({}, last), last);
      other = merged(other, last);
    }
    same_m = same_m && states[0].m == all.m;
    spread = std::max(spread, std::abs(double{states[0].l} / all.l - 1));
  }
  lesson.check("200 random splits in random order: the same m, to the bit", same_m);
  lesson.check("200 random splits in random order: the same l, but for rounding",
               spread <= attention_tolerance<float>(row.x.size(), all.m, 1).relative, human_error(spread));
  lesson.check("a merged with b is b merged with a, to the bit", commutes);
  lesson.check("merging with (-inf, 0) changes no bit", identity);
}

}  // namespace ring_attention::lesson
