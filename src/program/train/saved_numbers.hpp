/// \file
/// Where the numbers that a rank keeps are in an array of the whole model: a token range for each consecutive part.
#pragma once

#include <algorithm>
#include <functional>

#include "model/weights.hpp"

namespace ring_attention {

/// All flat arrays of a model in one process, one after the other: the order of the numbers in a file.
struct WholeLayout {
  explicit WholeLayout(const model::ModelShape& shape)
      : arrays(model::layouts(shape, model::TensorPart(shape, 0, 1))) {
    for (const model::ParameterLayout& layout : arrays) {
      begins.push_back(size);
      size += layout.size();
    }
  }

  std::vector<model::ParameterLayout> arrays;
  std::vector<Index> begins;
  Index size = 0;
};

/// What a rank keeps of an array: its parameters, or one of their moments.
template <class T>
using KeptNumbers = std::function<std::span<T>(std::size_t array)>;

/// Some of these, and their places in a file.
template <class T>
struct SavedNumbers {
  std::vector<std::span<T>> here;
  TokenRanges there;

  void add(std::span<T> numbers, Index begin) {
    here.push_back(numbers);
    const Index count = std::ssize(numbers);
    if (!there.empty() && there.back().end() == begin)
      there.back().count += count;  // rows of a matrix that the rank has in full
    else
      there.push_back({begin, 1, count});
  }
};

enum class Use { write, read };

/// Those that a rank reads: all that it keeps. Those that it writes: of the ranks with the same number, one writes it.
template <class T>
[[nodiscard]] SavedNumbers<T> saved_numbers(const model::Weights<T>& weights, const WholeLayout& whole,
                                            const KeptNumbers<T>& kept_numbers, Use use) {
  SavedNumbers<T> all;
  for (std::size_t array = 0; array < weights.arrays(); ++array) {
    const std::span<T> numbers = kept_numbers(array);
    const Interval kept = weights.kept(array), range = use == Use::read ? kept : weights.piece(array);
    const std::vector<model::Parameter>& parameters = weights.layout(array).parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const model::Parameter& p = parameters[i];
      if (use == Use::write && !p.counts) continue;
      const Index begin = whole.begins[array] + whole.arrays[array].parameters()[i].begin;
      const Index columns = p.columns.end - p.columns.begin, end = std::min(range.end, p.elements().end);
      for (Index at = std::max(range.begin, p.begin); at < end;) {
        const Index row = (at - p.begin) / columns, column = (at - p.begin) % columns;
        const Index count = std::min(end - at, columns - column);
        all.add(numbers.subspan(static_cast<std::size_t>(at - kept.begin), static_cast<std::size_t>(count)),
                begin + (p.rows.begin + row) * p.all_columns + p.columns.begin + column);
        at += count;
      }
    }
  }
  return all;
}

}  // namespace ring_attention
