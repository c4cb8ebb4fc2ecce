#include "model/task.hpp"

#include "ring_attention/core/mix.hpp"

namespace ring_attention::model {
namespace {

constexpr std::uint64_t round_tag = 77;

}  // namespace

Index Examples::labels() const {
  return std::ranges::count_if(label, [](Index of_token) { return of_token != Task::none; });
}

Examples examples(const Task& task, const Interval& sequences, const TokenRanges& ranges) {
  Examples made{sequences.end - sequences.begin, count(ranges), {}, {}, {}};
  for (Index sequence = sequences.begin; sequence < sequences.end; ++sequence)
    for (const Index position : positions(ranges)) {
      made.token.push_back(task.token(sequence, position));
      made.previous.push_back(position > 0 ? task.token(sequence, position - 1) : Task::none);
      made.label.push_back(task.label(sequence, position));
    }
  return made;
}

std::uint64_t hash(std::uint64_t seed, Index sequence, Index index, std::uint64_t tag) {
  const std::uint64_t of_sequence = mix(mix(seed ^ mix(tag)) ^ static_cast<std::uint64_t>(sequence));
  return mix(of_sequence ^ mix(static_cast<std::uint64_t>(index)));
}

Index permuted(std::uint64_t seed, Index sequence, Index x, int bits) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const int half = (bits + 1) / 2;
  auto value = static_cast<std::uint64_t>(x);
  for (Index round = 0; round < 4; ++round) {
    const std::uint64_t key = hash(seed, sequence, round, round_tag);
    value = (value ^ key) & mask;
    value = (value * ((key >> 32U) | 1U)) & mask;
    value ^= value >> half;
  }
  return static_cast<Index>(value);
}

}  // namespace ring_attention::model
