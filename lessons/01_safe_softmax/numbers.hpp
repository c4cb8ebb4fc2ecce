// Lesson 01: the numbers by which the judge of its exercise knows a mistake. with_mistakes.awk puts this into the namespace
// of the idea and of each mistake.

inline NumbersOf numbers() {
  using Row = std::vector<float>;
  constexpr float hidden = negative_infinity<float>;
  std::vector<double> all;
  for (const Row& row : {Row{1, 3, 2}, Row{-200, -201}, Row{-10200, -10201}, Row{90, 89}, Row{hidden, 1},
                         Row{hidden, hidden}}) {
    Row p(row.size());
    all.push_back(safe_softmax(row, std::span(p)));
    all.insert(all.end(), p.begin(), p.end());
  }
  return {{"safe_softmax", all}};
}
