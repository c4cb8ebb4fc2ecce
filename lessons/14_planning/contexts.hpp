// Where long contexts go: ranks, memory, time; and from which length on a ring hides its hops.
#pragma once

#include <cmath>

#include "common/lesson.hpp"
#include "mistakes.hpp"
#include "plan/search.hpp"

namespace ring_attention::lesson_14 {

inline std::string mesh_text(const plan::Mesh& mesh) {
  return format("%d x %d x %d", mesh.tensor, mesh.ulysses, mesh.ring);
}

/// Training steps of Llama 3 8B with one sequence of 10^5 to 10^9 tokens, on as many H100 as they need.
inline void show_contexts(Lesson& lesson) {
  const plan::Machine machine = plan::machine_named("8xh100");
  Table table({"tokens", "GPUs", "tensor x ulysses x ring", "weights ...", "activations", "a step", "exposed",
               "simulated / closed"});
  std::vector<double> tokens, gpus, seconds, simulated;
  for (const double context : {1e5, 1e6, 1e7, 1e8, 1e9}) {
    const plan::Workload work{plan::model_named("llama-3-8b"), plan::Phase::training, context, 1};
    const int ranks = plan::enough_ranks(work, machine, 8).value();
    const plan::Candidate best = plan::candidates(work, machine, ranks).front();
    const double all = plan::sum(best.memory), states = best.memory[0].value + best.memory[1].value;
    const plan::StepTime& time = best.time;
    const double step = time.total() - time.attention - time.merge - time.ring +
                        plan::simulated_ring(work, best.mesh, machine);
    table.row({format("%.0e", context), std::to_string(ranks), mesh_text(best.mesh),
               format("%.1f GB", states * 1e-9), format("%.1f GB", (all - states) * 1e-9),
               human_seconds(best.seconds()), format("%.1f %%", 100 * time.exposed() / best.seconds()),
               format("%.3f", step / best.seconds())});
    tokens.push_back(context);
    gpus.push_back(ranks);
    seconds.push_back(best.seconds());
    simulated.push_back(step);
  }
  lesson.print(table);
  lesson.check("ten times the tokens need about ten times the GPUs and ten times the time",
               std::abs(std::log10(gpus[4] / gpus[2]) - 2) <= 0.35 &&
                   std::abs(std::log10(seconds[4] / seconds[2]) - 2) <= 0.35);
  double largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    largest = std::max(largest, std::abs(simulated[i] / seconds[i] - 1));
  lesson.check("the recurrence agrees with the closed form within 3 %", largest <= 0.03,
               format("%.4f", largest));
  lesson.record("context_tokens", tokens);
  lesson.record("context_gpus", gpus);
  lesson.record("context_seconds", seconds);
}

/// The smallest shard that hides a hop, for a causal mask in zigzag placement.
inline void show_hiding(Lesson& lesson) {
  Table table({"machine", "link", "g = 1", "g = 4", "g = 16"});
  bool same = true;
  std::vector<std::vector<double>> shards;
  for (const plan::Machine& machine : plan::named_machines())
    for (const bool inside : {true, false}) {
      const double beta = inside ? machine.link.beta : machine.nic.beta;
      std::vector<std::string> cells{machine.name, inside ? "in a node" : "NIC"};
      auto& row = shards.emplace_back();
      for (const double group : {1.0, 4.0, 16.0}) {
        row.push_back(lesson::smallest_shard(machine.attention_rate(128), beta, 2, group, true));
        cells.push_back(format("%.0f", row.back()));
      }
      same = same && std::abs(row[0] - 4 * row[1]) <= 1e-6 * row[0];
      table.row(cells);
    }
  lesson.print(table);
  lesson.say("  Tokens of a shard; bf16, causal, zigzag; F of the attention kernel, not the peak.");
  lesson.check("a quarter of the KV heads needs a quarter of the tokens", same);
  // Lesson 06's condition, and table 2 of the paper, are the same formula with the peak and without a mask.
  const double paper = lesson::smallest_shard(312e12, 300e9, 2, 1, false);
  lesson.check("without a mask, at the peak of an A100: 1040, the paper's 1.0 thousand",
               std::abs(paper - 1040) <= 1e-9);
  lesson.check("a causal mask doubles it",
               std::abs(lesson::smallest_shard(312e12, 300e9, 2, 1, true) - 2080) <= 1e-9);
  lesson.record("smallest_shards", shards);
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
  lesson.record("all_to_all_seconds", std::vector<double>{own, one});
}

}  // namespace ring_attention::lesson_14
