// The paper's tables beside the formulas, and published measurements beside predictions.
#pragma once

#include "14_planning/published/measurements.hpp"
#include "14_planning/published/paper.hpp"
#include "common/lesson.hpp"
#include "mistakes.hpp"

namespace ring_attention::lesson_14 {

inline void check_table_2(Lesson& lesson) {
  const auto exact = std::ranges::count_if(plan::table_2, [](const plan::SmallestBlock& row) {
    return format("%.1f", row.block()) == format("%.1f", row.printed_block) &&
           format("%.1f", row.sequence()) == format("%.1f", row.printed_sequence);
  });
  lesson.say(
      "  Slips of table 2: InfiniBand, 312 / 12.5 is 24.96; six arrays of c tokens are not 6 c tokens.");
  lesson.check("table 2, c = F / beta and s = 6 c: four of five rows are right to the digit", exact == 4);
}

inline void show_table_3(Lesson& lesson, const std::string& mutant) {
  Table table(
      {"table 3", "model", "blockwise, printed", "memory model", "ring, printed", "memory model", "error"});
  bool within = true, ring_within = true;
  int exact = 0, ring_exact = 0;
  for (const plan::LongestContext& row : plan::table_3) {
    const double tokens = plan::blockwise_context(row, mutant == "gibibytes" ? 0x1p30 : 1e9);
    const double ratio = tokens / row.blockwise;
    within = within && ratio >= 0.5 && ratio <= 2;
    exact += ratio == 1 ? 1 : 0;
    const double ring = plan::ring_context(row), ring_ratio = ring / row.ring;
    const bool is_odd = std::string(row.devices) == "32x A100";
    ring_within = ring_within && ring_ratio >= (is_odd ? 0.25 : 0.5) && ring_ratio <= 2;
    ring_exact += ring_ratio == 1 ? 1 : 0;
    table.row({row.devices, row.model, format("%.0f", row.blockwise), format("%.0f", tokens),
               format("%.0f", row.ring), format("%.0f", ring), format("%+.0f %%", 100 * (ring_ratio - 1))});
  }
  lesson.print("table_3", table);
  lesson.say(
      format("  Thousands of tokens; the memory models are right in %d and %d rows.", exact, ring_exact));
  lesson.say("  32 A100 are printed with 16 times the tokens of 8 A100; the memory model gives 4 times.");
  lesson.say("  Slip: the text has \"over 30 million tokens\"; the largest entry is 16384 thousand.");
  lesson.check("the memory model is within a factor of two in all 13 rows", within);
  lesson.check("that of the ring too, but for 32 A100: a quarter", ring_within);
}

inline void show_figure_5(Lesson& lesson) {
  int exact = 0, values = 0;
  double largest = 0;
  for (const plan::FlopsRatios& row : plan::figure_5)
    for (std::size_t i = 0; i < plan::figure_5_multiples.size(); ++i, ++values) {
      const double error =
          std::abs(plan::flops_ratio(row.hidden, plan::figure_5_multiples[i]) - row.printed[i]);
      exact += error <= 0.05 + 1e-9 ? 1 : 0;
      largest = std::max(largest, error);
    }
  lesson.say(
      format("  figure 5: (6h + s2) / (6h + s1) gives %d of its %d values to the digit.", exact, values));
  lesson.say(
      "  Slips: the text has h = 5140 for 13B, the figure 5120; it has 7168 for 33B, LLaMA's is 6656.");
  lesson.check("figure 5: 54 of 54", exact == 54 && values == 54);
}

inline void show_validation(Lesson& lesson) {
  Table table({"source", "what", "published", "predicted", "error", ""});
  bool as_stated = true;
  int striped = 0, reasons = 0;
  std::string why;
  for (const plan::Prediction& row : plan::every_prediction()) {
    as_stated = as_stated && row.as_stated();
    if (row.source == "Striped Attention") {
      striped += row.within() ? 1 : 0;
      continue;
    }
    if (!row.why_not.empty() && why.find(row.why_not) == std::string::npos)
      why += format("  (%d) %s.\n", ++reasons, row.why_not.c_str());
    table.row({row.source, row.what, format("%.4g", row.published) + " " + row.unit,
               format("%.4g", row.predicted), format("%+.1f %%", 100 * row.error()),
               row.why_not.empty() ? "" : format("(%d)", reasons)});
  }
  lesson.print("published", table);
  lesson.say("  These do not fit:\n" + why +
             format("  Striped Attention, table 3: %d of 21 theoretical speed-ups to the digit.", striped));
  lesson.check("every row fits, or says why it does not", as_stated && striped == 21);
}

}  // namespace ring_attention::lesson_14
