// What plausible tests say of mistakes, as a table.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention {

/// Prints which test passes for which mistake, and checks what the table is to show: each test but the last
/// one passes for a mistake.
///
/// \param tests     their names
/// \param mistakes  each has a name and a mistake
/// \param passes    passes(mistake): 1 or 0 for each test; Mistake{} is none
void show_weak_tests(Lesson& lesson, const auto& tests, const auto& mistakes, const auto& passes) {
  using Mistake = decltype(mistakes.front().mistake);
  std::vector<std::string> heading{"test", "right"};
  Table columns({"column", "mistake"});
  std::vector<std::vector<Index>> of_mistakes{passes(Mistake{})};
  for (const auto& wrong : mistakes) {
    heading.push_back(std::to_string(of_mistakes.size()));
    columns.row({heading.back(), wrong.name});
    of_mistakes.push_back(passes(wrong.mistake));
  }
  Table table(heading);
  bool right_passes = true, each_misses = true, last_catches = true;
  for (std::size_t test = 0; test < tests.size(); ++test) {
    std::vector<std::string> cells{tests.at(test)};
    for (const auto& verdicts : of_mistakes) cells.emplace_back(verdicts[test] == 1 ? "passes" : "caught");
    table.row(cells);
    const auto missed = std::ranges::count(cells.begin() + 2, cells.end(), "passes");
    right_passes = right_passes && cells[1] == "passes";
    if (test + 1 == tests.size())
      last_catches = missed == 0;
    else
      each_misses = each_misses && missed > 0;
  }
  lesson.print("mistakes", table);
  lesson.print("columns", columns);
  lesson.check("what is right passes every test", right_passes);
  lesson.check("each test but the last passes for a mistake", each_misses);
  lesson.check("the last one catches them all", last_catches);
}

}  // namespace ring_attention
