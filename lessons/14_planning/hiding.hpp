// From which length on a ring hides its hops, and messages that share a link.
#pragma once

#include <cmath>

#include "common/lesson.hpp"
#include "mistakes.hpp"
#include "plan/network.hpp"
#include "plan/volume.hpp"

namespace ring_attention::lesson_14 {

/// The smallest shard that hides a hop, for a causal mask in zigzag placement.
inline void show_hiding(Lesson& lesson) {
  Table table({"machine", "link", "g = 1", "g = 4", "g = 16"});
  bool same = true;
  for (const plan::Machine& machine : plan::named_machines())
    for (const bool inside : {true, false}) {
      const double beta = inside ? machine.link.beta : machine.nic.beta;
      std::vector<std::string> cells{machine.name, inside ? "in a node" : "NIC"};
      const auto shard = [&](double group) {
        return lesson::smallest_shard(machine.attention_rate(128), beta, 2, group, true);
      };
      for (const double group : {1.0, 4.0, 16.0}) cells.push_back(format("%.0f", shard(group)));
      same = same && std::abs(shard(1) - 4 * shard(4)) <= 1e-6 * shard(1);
      table.row(cells);
    }
  lesson.print("hiding", table);
  lesson.say("  Tokens of a shard; bf16, causal, zigzag; F of the attention kernel, not the peak.");
  lesson.check("a quarter of the KV heads needs a quarter of the tokens", same);
  // Lesson 06's condition, and table 2 of the paper, are the same formula with the peak and without a mask.
  const double paper = lesson::smallest_shard(312e12, 300e9, 2, 1, false);
  lesson.check("without a mask, at the peak of an A100: 1040, the paper's 1.0 thousand",
               std::abs(paper - 1040) <= 1e-9);
  lesson.check("a causal mask doubles it",
               std::abs(lesson::smallest_shard(312e12, 300e9, 2, 1, true) - 2080) <= 1e-9);
}

/// What a ring is not: messages that share links.
inline void show_shared_links(Lesson& lesson, const std::string& mutant) {
  const plan::Machine machine = plan::machine_named("8xh100");
  constexpr int ranks = 16;
  constexpr double piece = 16e6;
  const double own = plan::all_to_all_seconds(machine, ranks, piece);
  const double one = one_nic_seconds(mutant, machine, ranks, piece);
  lesson.say(format("  all-to-all of 16 GPUs in two nodes, 16 MB a pair: 8 NICs a node %s, one NIC %s",
                    human_seconds(own).c_str(), human_seconds(one).c_str()));
  lesson.check("one NIC for eight GPUs carries 64 messages of a node one after the other",
               one >= 64 * piece / machine.nic.beta && one > 4 * own);
  const plan::Attention layer{1, 65536, 32, 8, 128};
  const double heads = parcel_heads(mutant, 8, 16);
  lesson.check("16 ranks of Ulysses and 8 KV heads: each rank has a whole head, a replica",
               heads == plan::sent_kv_heads(layer, 16) / 16, format("%.2f heads a rank", heads));
}

}  // namespace ring_attention::lesson_14
