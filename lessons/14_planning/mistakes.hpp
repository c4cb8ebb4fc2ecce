// Lesson 14, beside the idea: planners that are wrong in one place.
#pragma once

#include <string>
#include <vector>

#include "plan/network.hpp"

namespace ring_attention::lesson_14 {

using lesson::Seconds;

inline const std::vector<std::pair<std::string, std::string>> mistakes{
    {"one-buffer", "a parcel leaves when both ranks have computed: nothing is hidden"},
    {"infinite-buffers", "a rank never waits for the next one to have space"},
    {"self-hop", "the last step has a hop, too"},
    {"no-diagonal", "a query does not see its own key"},
    {"gibibytes", "a GB of memory has 2^30 bytes"},
    {"own-nic", "each rank has the whole NIC of its node"},
    {"cut-heads-twice",
     "the ring's K,V are divided among the ranks of Ulysses even where they have replicas"}};

/// The recurrence with a mistake: which one says `name`; else that of the lesson.
inline double ring_seconds(const std::string& name, int ranks, const Seconds& compute, const Seconds& hop) {
  if (name != "one-buffer" && name != "infinite-buffers" && name != "self-hop")
    return lesson::ring_seconds(ranks, compute, hop);
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<double> begin(n, 0), next(n);
  for (int t = 0; t < ranks; ++t) {
    const auto done = [&](int r) { return begin[static_cast<std::size_t>(r)] + compute(r, t); };
    const auto started = [&](int r) {
      return name == "one-buffer" ? done(r) : begin[static_cast<std::size_t>(r)];
    };
    const auto arrival = [&](int r) {
      const double sent = started(Ring{r, ranks}.prev());
      return (name == "infinite-buffers" ? sent : std::max(sent, started(r))) + hop(r, t);
    };
    for (int r = 0; r < ranks; ++r) {
      double& end = next[static_cast<std::size_t>(r)];
      end = done(r);
      if (t + 1 == ranks && name != "self-hop") continue;
      end = std::max(end, arrival(r));
      if (name != "infinite-buffers") end = std::max(end, arrival(Ring{r, ranks}.next()));
    }
    begin = next;
  }
  return *std::max_element(begin.begin(), begin.end());
}

inline double causal_pairs(const std::string& name, double c, int rank, int step) {
  return lesson::causal_pairs(c, rank, step) - (name == "no-diagonal" && step == 0 ? c : 0);
}

/// Seconds of an all-to-all over nodes of 8 with one NIC.
inline double one_nic_seconds(const std::string& name, plan::Machine machine, int ranks, double piece_bytes) {
  machine.nics = name == "own-nic" ? machine.node : 1;
  return plan::all_to_all_seconds(machine, ranks, piece_bytes);
}

/// K,V heads of a rank in a ring of a hybrid.
inline double parcel_heads(const std::string& name, double kv_heads, double ulysses) {
  return name == "cut-heads-twice" ? kv_heads / ulysses : std::max(1.0, kv_heads / ulysses);
}

}  // namespace ring_attention::lesson_14
