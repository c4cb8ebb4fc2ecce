// Heads, scale, bias and sinks: what a score is made of.
#include <cmath>

#include "diagnose/mistakes/edits.hpp"

namespace ring_attention::diagnose {
namespace {

Index first_head(const Problem&, Index) { return 0; }

/// The number of a head on its rank, where ranks share the heads.
Index local_head(const Problem& problem, Index head) {
  return head % (problem.the_case.heads / problem.job.ulysses);
}

/// Lets the bias take keys to stand in the order in which they arrive.
void bias_on_arrival(Rules& rules) {
  rules.bias_positions.push_back([direction = rules.direction](const Slots& slots, Pair& pair) {
    const int from = direction > 0 ? pair.key.rank : pair.query.rank,
              to = direction > 0 ? pair.query.rank : pair.key.rank;
    pair.key.position = Ring{to, slots.ranks()}.step_of(from) * slots.count() + pair.key.slot;
  });
}

/// Lets the bias take query and key to be elsewhere: at their slots.
void bias_at_slots(Rules& rules, bool query, bool key) {
  rules.bias_positions.push_back([=](const Slots&, Pair& pair) {
    if (query) pair.query.position = pair.query.slot;
    if (key) pair.key.position = pair.key.slot;
  });
}

}  // namespace

std::vector<Edit> score_edits() {
  return {
      {"gqa-modulo",
       [](Rules& rules) {
         rules.kv_head = [](const Problem& problem, Index head) { return head % problem.the_case.kv_heads; };
       }},
      {"gqa-first-kv", [](Rules& rules) { rules.kv_head = first_head; }},
      {"no-scale", [](Rules& rules) { rules.scale = [](const Case&) { return 1.0; }; }},
      {"scale-twice",
       [](Rules& rules) { rules.scale = [](const Case& c) { return c.scale() * c.scale(); }; }},
      {"scale-all-heads",
       [](Rules& rules) {
         rules.scale = [](const Case& c) { return c.scale() / std::sqrt(static_cast<double>(c.heads)); };
       }},
      {"bias-ignored", [](Rules& rules) { rules.bias = [](const Case&, double) { return 0.0; }; }},
      {"bias-times-scale",
       [](Rules& rules) { rules.bias = [](const Case& c, double x) { return x * c.scale(); }; }},
      {"bias-local-columns", [](Rules& rules) { bias_at_slots(rules, false, true); }},
      {"bias-on-arrival", bias_on_arrival, directed},
      {"bias-query-0", [](Rules& rules) { bias_at_slots(rules, true, false); }},
      {"bias-head-0", [](Rules& rules) { rules.bias_head = first_head; }},
      {"alibi-local", [](Rules& rules) { bias_at_slots(rules, true, true); }},
      {"local-head", [](Rules& rules) { rules.slope_head = rules.sink_head = local_head; }},
      {"sink-ignored", [](Rules& rules) { rules.sink_times = [](int, int) { return 0.0; }; }},
      {"sink-every-rank",
       [](Rules& rules) { rules.sink_times = [](int, int ranks) { return static_cast<double>(ranks); }; }},
      {"sink-every-step",
       [](Rules& rules) {
         rules.sink_times = [](int steps_with_keys, int) { return static_cast<double>(steps_with_keys); };
       }},
      {"sink-head-0", [](Rules& rules) { rules.sink_head = first_head; }},
  };
}

}  // namespace ring_attention::diagnose
