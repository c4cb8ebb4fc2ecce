// The rows of the conformance suite that are problems: named cases, and random ones.
#pragma once

#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {

struct NamedCase {
  std::string name;
  Case what;
};

/// A bias, sinks, a softcap and dropout: each in some of the cases, by `turn`.
inline void add_terms(Case& what, std::size_t turn) {
  constexpr std::pair<Index, bool> extents[] = {{0, false}, {1, false}, {1, true}, {2, false}, {2, true}};
  const auto& [batches, each_head] = extents[turn % 5];  // of a bias; none
  what.bias_batch = std::min(batches, what.batch);
  what.bias_heads = each_head ? what.q().heads : what.bias_batch > 0 ? 1 : 0;
  if ((turn + turn / 6) % 3 == 1)
    for (Index head = 0; head < what.q().heads; ++head)
      what.scoring.sinks.push_back(head % 4 == 2 ? negative_infinity<double>
                                                 : 0.5 * static_cast<double>(head) - 1);
  if (turn % 7 < 2) what.scoring.softcap = turn % 7 == 0 ? 0.8 : 5;
  if (turn / 2 % 2 == 1 && what.keys > 1)  // of one key, all pairs may be dropped
    what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2, .first_head = 3};
}

/// Every mask at lengths that nothing divides, of fewer tokens than ranks, and of several tiles of the fast kernels; every
/// placement, number of heads that share K,V, width of V, kind of bias, sinks and dropout are in turn with these.
inline std::vector<NamedCase> named_cases() {
  std::vector<NamedCase> all;
  constexpr std::pair<Index, Index> heads[] = {{4, 4}, {4, 2}, {6, 3},
                                               {4, 1}, {6, 2}, {6, 1}};  // of Q, and of K,V
  constexpr Index blocks[] = {3, 1, 64};                                 // of the readable engines
  constexpr Index value_dims[] = {0, 1, 3, 0, 9, 0, 20};                 // of V
  std::size_t turn = 0;
  for (const auto& [queries, keys] :
       {std::pair<Index, Index>{17, 17}, {9, 22}, {19, 13}, {2, 2}, {1, 1}, {5, 1}, {70, 110}})
    for (std::size_t mask = 0; mask < every_scoring(1, 1, 1, 1).size(); ++mask) {
      const auto& [query_heads, kv_heads] = heads[turn % 6];
      const NamedScoring named = every_scoring(queries, keys, query_heads, 0.6)[mask];
      Case what{.batch = 1 + static_cast<Index>(turn % 2),
                .kv_heads = kv_heads,
                .group = query_heads / kv_heads,
                .queries = queries,
                .keys = keys,
                .dim = 5,
                .scoring = named.scoring,
                .block = blocks[turn % 3],
                .kind = placements_of_teams.begin()[turn / 2 % placements_of_teams.size()],
                .every_hop = turn % 4 != 0,
                .value_dim = value_dims[turn % 7]};
      add_terms(what, turn++);
      all.push_back({named.name + ", " + std::to_string(queries) + " x " + std::to_string(keys), what});
    }
  // Extreme scores: thousands, so that a softmax is nearly a choice; and one sink far from all of them.
  for (const Mask& mask : {Mask{}, Mask::causal()})
    for (const double scale : {1.0, 30.0})
      all.push_back(
          {"scores of thousands",
           {.group = 2, .queries = 17, .keys = 17, .dim = 5, .scoring = {scale, mask}, .spike_every = 4}});
  all.push_back({"scores of thousands, capped",
                 {.group = 2,
                  .queries = 17,
                  .keys = 17,
                  .dim = 5,
                  .scoring = {.scale = 30, .softcap = 4},
                  .spike_every = 4}});
  // Multi-head latent attention (DeepSeek-V2): a head of K has 64 columns more than one of V, for the position.
  all.push_back({"MLA",
                 {.group = 2,
                  .queries = 30,
                  .keys = 37,
                  .dim = 192,
                  .scoring = {0.07, Mask::causal(7)},
                  .kind = PlacementKind::zigzag,
                  .value_dim = 128}});
  for (const double sink : {-300.0, 30.0}) {
    Case what{.group = 2, .queries = 17, .keys = 17, .dim = 5, .scoring = {0.6, Mask::causal()}};
    what.scoring.sinks.assign(4, sink);
    all.push_back({"sinks of " + std::to_string(sink), what});
  }
  return all;
}

/// Any numbers of heads, widths of K and V, tiles and terms; in one of three up to 140 tokens.
inline Case random_problem(Dice& dice, Index index) {
  Case what = random_case(dice, index, 4);
  what.kv_heads = dice.between(1, 4);
  what.group = dice.between(1, 3);
  if (dice.one_in(4)) what.kind = PlacementKind::balanced;
  if (what.scoring.has_alibi()) what.scoring.alibi_slopes = alibi_slopes(what.q().heads);
  if (what.scoring.mask.right != 0 && dice.one_in(3)) what.scoring.mask.right = dice.between(0, what.keys);
  if (dice.one_in(3)) {
    what.keys = dice.between(60, 140);
    what.queries = dice.between(60, 140);
    what.scoring.mask.offset = what.keys - what.queries;
    what.scoring.mask.documents = nullptr;
  }
  if (dice.one_in(4)) what.scoring.mask.sets = random_sets(dice, what.queries, what.keys);
  what.dim = dice.one_in(8) ? dice.between(1, 256) : what.dim;
  if (most_visible_keys(what) >= 8) add_terms(what, static_cast<std::size_t>(dice.between(0, 29)));
  if (dice.one_in(2)) what.value_dim = dice.one_in(8) ? dice.between(1, 256) : dice.between(1, 40);
  return what;
}

}  // namespace ring_attention::test
