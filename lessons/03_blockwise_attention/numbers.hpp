// Lesson 03: the numbers by which the judge of its exercise knows a mistake. with_mistakes.awk puts this into the namespace
// of the idea and of each mistake.

inline std::vector<double> numbers_of(const Partial<float>& state) {
  std::vector<double> all;
  for (const auto* array : {&state.o, &state.m, &state.l})
    all.insert(all.end(), array->data(), array->data() + array->size());
  return all;
}

/// Three queries, three keys, values of two columns: a row with all keys, one with a hidden key, one with none.
inline std::vector<double> numbers_of_tile() {
  constexpr float hidden = negative_infinity<float>;
  std::array scores{1.F, 3.F, 2.F, 4.F, hidden, 2.F, hidden, hidden, hidden};
  const std::array v{1.F, -2.F, 3.F, 5.F, -1.F, 4.F};
  auto tile = Partial<float>::empty(Shape{1, 1, 3, 2});
  softmax_of_tile(MatrixMap<float>{scores.data(), 3, 3}, MatrixMap<const float>{v.data(), 3, 2}, tile, {});
  return numbers_of(tile);
}

/// Rows 1 to 3 of a state get a tile: with a larger maximum, with a smaller one, and as the first.
inline std::vector<double> numbers_of_merge() {
  const auto state = [](const std::vector<float>& m, const std::vector<float>& l, float o) {
    auto partial = Partial<float>::empty(Shape{1, 1, std::ssize(m), 2});
    std::ranges::copy(m, partial.m.data());
    std::ranges::copy(l, partial.l.data());
    for (float& x : partial.o.view().elements()) x = o += 0.75F;
    return partial;
  };
  auto sum = state({5, 1, 3, negative_infinity<float>}, {1, 2, 1.5F, 0}, 0);
  std::fill_n(sum.o.data() + 6, 2, 0.F);
  merge_tile(sum, 1, state({3, 1, 2}, {1.25F, 2, 1}, -2), 3, {});
  return numbers_of(sum);
}

inline NumbersOf numbers() {
  return {{"softmax of a tile", numbers_of_tile()}, {"merge", numbers_of_merge()}};
}
