// Lesson 02: the numbers by which the judge of its exercise knows a mistake. with_mistakes.awk puts this into the namespace
// of the idea and of each mistake.

inline NumbersOf numbers() {
  using Row = std::vector<float>;
  using S = State<float>;
  constexpr float hidden = negative_infinity<float>;
  std::vector<double> factors, states, both;
  for (const auto& [from, to] : {std::pair{1.F, 3.F}, {3, 1}, {2, 2}, {hidden, 2}, {hidden, hidden}})
    factors.push_back(factor(from, to));
  const auto append = [](std::vector<double>& all, const S& state) {
    all.insert(all.end(), {state.m, state.l});
  };
  for (const Row& row : {Row{1, 2, 0}, Row{6, 4, 5}, Row{hidden, 1}, Row{1, hidden}, Row{2}})
    append(states, online_state<float>(row));
  for (const auto& [a, b] :
       {std::pair{S{1, 2}, S{3, 1}}, {S{3, 1}, S{1, 2}}, {S{}, S{3, 1}}, {S{3, 1}, S{}}, {S{}, S{}}})
    append(both, merged(a, b));
  return {{"factor", factors}, {"one more score", states}, {"merge", both}};
}
