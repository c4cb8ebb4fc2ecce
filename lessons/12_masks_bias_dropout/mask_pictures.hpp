// Lesson 12: the masks that models are trained with, each as a function of two positions and as a picture.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/lesson.hpp"
#include "ring_attention/attention/mask_sets.hpp"

namespace ring_attention::lesson_12 {

struct NamedMask {
  const char* name;
  Mask mask;                               // the library's
  std::function<bool(Index, Index)> sees;  // may the query at i see the key at j?
};

inline Mask with(Mask mask, MaskSets::Sets sets) {
  mask.sets = std::make_shared<const MaskSets>(std::move(sets));
  return mask;
}
inline Mask with_rows(std::vector<Interval> rows, int width) {
  return {.sets = std::make_shared<const MaskRows>(std::move(rows), width)};
}

/// For sequences of 12 tokens.
inline std::vector<NamedMask> named_masks() {
  const Mask causal = Mask::causal(), window{.left = 2, .right = 0}, both{.left = 1, .right = 1};
  const auto in_one = [](Index i, Index j, Index begin, Index end) {
    return std::min(i, j) >= begin && std::max(i, j) < end;
  };
  Mask documents = window;
  documents.documents = std::make_shared<Documents>(std::vector<Index>{0, 5, 12});
  std::vector<Interval> dilated;  // every third key back from the query's own, and four of them at most
  for (Index i = 0; i < 12; ++i)
    for (Index back = 3; back >= 0; --back) dilated.push_back({i - 3 * back, i - 3 * back + 1});
  for (Interval& one : dilated) one = one.begin < 0 ? Interval{0, 0} : one;

  return {
      {"causal", causal, [](Index i, Index j) { return j <= i; }},
      {"window", window, [](Index i, Index j) { return i - 2 <= j && j <= i; }},
      {"chunks", with(causal, {.chunk = 4}), [](Index i, Index j) { return j <= i && i / 4 == j / 4; }},
      {"prefix", with(causal, {.blocks = {{0, 5}}}),
       [](Index i, Index j) { return j <= i || std::max(i, j) < 5; }},
      {"blocks", with(causal, {.blocks = {{2, 5}, {7, 11}}}),
       [=](Index i, Index j) { return j <= i || in_one(i, j, 2, 5) || in_one(i, j, 7, 11); }},
      {"sink tokens", with(window, {.sink_tokens = 2}),
       [](Index i, Index j) { return j <= i && (j < 2 || i - 2 <= j); }},
      {"sinks, documents", with(documents, {.sink_tokens = 1}),
       [](Index i, Index j) {
         const Index begin = i < 5 ? 0 : 5;
         return begin <= j && j <= i && (j == begin || i - 2 <= j);
       }},
      {"global tokens", with(both, {.globals = {{0, 1}, {6, 8}}}),
       [](Index i, Index j) {
         const auto global = [](Index x) { return x == 0 || x == 6 || x == 7; };
         return std::abs(i - j) <= 1 || global(i) || global(j);
       }},
      {"intervals", with_rows(dilated, 4), [](Index i, Index j) { return j <= i && (i - j) % 3 == 0; }},
  };
}

/// Five pictures beside each other: queries from top to bottom, keys from left to right.
inline void show_masks(Lesson& lesson) {
  constexpr Index tokens = 12;
  constexpr std::size_t beside = 5, column = 18;
  const std::vector<NamedMask> all = named_masks();
  for (std::size_t first = 0; first < all.size(); first += beside) {
    std::vector<std::string> lines(tokens + 1);
    for (std::size_t each = first; each < std::min(first + beside, all.size()); ++each) {
      std::vector<std::string> picture{all[each].name};
      for (Index i = 0; i < tokens; ++i) {
        picture.emplace_back();
        for (Index j = 0; j < tokens; ++j) picture.back() += all[each].sees(i, j) ? '#' : '.';
      }
      for (std::size_t line = 0; line < lines.size(); ++line) {
        lines[line].resize(column * (each - first), ' ');
        lines[line] += picture[line];
      }
    }
    for (const std::string& line : lines) lesson.say("  " + line);
    lesson.say("");
  }

  bool same = true, disjoint = true;
  for (const NamedMask& each : all) {
    for (Index i = 0; i < tokens; ++i)
      for (Index j = 0; j < tokens; ++j) {
        int times = 0;
        for (int part = 0; part < each.mask.parts(); ++part) {
          const Interval keys = each.mask.visible(i, part);
          times += keys.begin <= j && j < keys.end ? 1 : 0;
        }
        same = same && each.mask.allowed(i, j) == each.sees(i, j);
        disjoint = disjoint && times == (each.sees(i, j) ? 1 : 0);
      }
  }
  lesson.check("the library's masks are these functions", same);
  lesson.check("the intervals of a query have each of its keys once", disjoint);
}

}  // namespace ring_attention::lesson_12
