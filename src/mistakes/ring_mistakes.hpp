/// \file
/// `ring_mistakes`: rings with one mistake in them, in one table. A mistake has its id of docs/mistakes.md, and rules that take
/// the place of right ones; mistaken_ring.hpp has the ring that follows them.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "mistakes/merging_engine.hpp"
#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

/// Where a rank is in its ring.
struct RingStep {
  const Placement& keys;
  Ring ring;
  int step;

  /// The rank whose K,V it has.
  [[nodiscard]] int owner() const { return ring.owner(step); }
  /// Where tokens would stand in another placement.
  [[nodiscard]] TokenRanges placed(PlacementKind kind) const {
    return Placement(kind, keys.seq(), keys.ranks()).ranges(owner());
  }
};

/// What a ring does differently. It is right where a member is null.
struct RingMistake {
  /// The steps whose K, and whose V, a step uses: its own, or earlier ones.
  struct Content {
    int k, v;
  };
  using Where = TokenRanges (*)(const RingStep&);

  std::string_view id;
  // How scores are formed.
  void (*scoring)(Scoring&) = nullptr;
  // Which K,V a step uses, and how often; where their keys, and the queries, are taken to stand.
  int (*times)(int step, int steps) = nullptr;
  Content (*content)(int step) = nullptr;
  Where keys = nullptr, queries = nullptr;
  Index (*kv_head)(Index head, Index kv_heads) = nullptr;
  // How the forward merges its steps.
  MergeRules merge = {};
  // What travels: K,V are swapped when a hop begins; how many of its hops the gradients of a shard make; a hop brings zeros.
  bool swaps_early = false;
  int (*gradient_hops)(int right) = nullptr;
  bool overwrites_gradients = false;
  // What the backward takes from the forward, where `own` is out and lse over the rank's own keys and may be overwritten;
  // what of a step's dK,dV, and of those of a query head in its group, is kept; the scale of dQ.
  void (*forward)(BackwardInputs<float>& given, AttentionResult<float>& own) = nullptr;
  void (*part)(const KeyValueGradient<float>& part, int step, double scale) = nullptr;
  float (*share)(Index member, Index group) = nullptr;
  double (*dq_factor)(double scale) = nullptr;
};

namespace mistakes {

inline TokenRanges in_shard(const RingStep& at) { return whole(at.keys.tokens(at.owner())); }
template <PlacementKind kind>
TokenRanges as_placed(const RingStep& at) {
  return at.placed(kind);
}
inline void scale(View<float> array, float factor) {
  for (float& x : array.elements()) x *= factor;
}
using Own = AttentionResult<float>;
using Given = BackwardInputs<float>;
using Part = KeyValueGradient<float>;

}  // namespace mistakes

/// All of them.
inline const std::vector<RingMistake>& ring_mistakes() {
  using namespace mistakes;  // NOLINT
  static const std::vector<RingMistake> all{
      // the loop
      {.id = "steps-short", .times = [](int step, int steps) { return step + 1 < steps ? 1 : 0; }},
      {.id = "skip-own", .times = [](int step, int) { return step > 0 ? 1 : 0; }},
      {.id = "extra-step", .times = [](int step, int) { return step == 0 ? 2 : 1; }},
      {.id = "no-ring", .times = [](int step, int) { return step == 0 ? 1 : 0; }},
      {.id = "not-sent", .content = [](int) { return RingMistake::Content{0, 0}; }},
      {.id = "k-stays", .content = [](int step) { return RingMistake::Content{0, step}; }},
      {.id = "v-stays", .content = [](int step) { return RingMistake::Content{step, 0}; }},
      {.id = "step-before",
       .content =
           [](int step) { return RingMistake::Content{std::max(step - 1, 0), std::max(step - 1, 0)}; }},
      {.id = "v-step-before",
       .content = [](int step) { return RingMistake::Content{step, std::max(step - 1, 0)}; }},
      {.id = "early-swap", .swaps_early = true},
      // whose tokens they are
      {.id = "owner-wrong-way",
       .keys = [](const RingStep& at) { return at.keys.ranges(at.ring.owner(at.ring.size - at.step)); }},
      {.id = "owner-off-by-one",
       .keys = [](const RingStep& at) { return at.keys.ranges(at.ring.owner(at.step + 1)); }},
      {.id = "mask-local", .keys = in_shard, .queries = in_shard},
      {.id = "queries-local", .queries = in_shard},
      {.id = "mask-as-contiguous",
       .keys = as_placed<PlacementKind::contiguous>,
       .queries = as_placed<PlacementKind::contiguous>},
      {.id = "mask-as-striped",
       .keys = as_placed<PlacementKind::striped>,
       .queries = as_placed<PlacementKind::striped>},
      {.id = "mask-as-zigzag",
       .keys = as_placed<PlacementKind::zigzag>,
       .queries = as_placed<PlacementKind::zigzag>},
      // scores
      {.id = "no-mask", .scoring = [](Scoring& how) { how.mask = {}; }},
      {.id = "causal-plus-one", .scoring = [](Scoring& how) { how.mask.right += how.mask.right == 0; }},
      {.id = "window-ignored", .scoring = [](Scoring& how) { how.mask.left = Mask::unlimited; }},
      {.id = "window-plus-one",
       .scoring = [](Scoring& how) { how.mask.left += how.mask.left < Mask::unlimited; }},
      {.id = "documents-ignored", .scoring = [](Scoring& how) { how.mask.documents = nullptr; }},
      {.id = "no-scale", .scoring = [](Scoring& how) { how.scale = 1; }},
      {.id = "gqa-modulo", .kv_head = [](Index head, Index kv_heads) { return head % kv_heads; }},
      {.id = "gqa-first-kv", .kv_head = [](Index, Index) { return Index{0}; }},
      // the softmax of a step, and the merge of steps
      {.id = "no-max", .merge = {.maximum = [](float) { return 0.0F; }}},
      {.id = "m-starts-0", .merge = {.maximum = [](float m) { return std::max(m, 0.0F); }}},
      {.id = "finite-start", .merge = {.maximum = [](float m) { return std::max(m, -1e4F); }}},
      {.id = "unguarded-row", .merge = {.guarded = false}},
      {.id = "o-not-rescaled", .merge = {.factors = [](MergeFactors& f, float, float) { f.o = 1; }}},
      {.id = "l-not-rescaled", .merge = {.factors = [](MergeFactors& f, float, float) { f.l = 1; }}},
      {.id = "neither-rescaled", .merge = {.factors = [](MergeFactors& f, float, float) { f.o = f.l = 1; }}},
      {.id = "new-not-rescaled",
       .merge = {.factors = [](MergeFactors& f, float, float) { f = {1, 1, 1, 1}; }}},
      {.id = "factor-inverted",
       .merge = {.factors = [](MergeFactors& f, float m, float to) { f.o = f.l = std::exp(to - m); }}},
      {.id = "average-in-turn",
       .merge = {.weights = [](float, float, float lse) { return MergeWeights{0.5F, 0.5F, lse}; }}},
      {.id = "sum-normalised",
       .merge = {.weights = [](float, float, float lse) { return MergeWeights{1, 1, lse}; }}},
      {.id = "last-wins",
       .merge = {.weights = [](float, float added, float) { return MergeWeights{0, 1, added}; }}},
      {.id = "swapped-sigmoid",
       .merge = {.weights =
                     [](float before, float added, float lse) {
                       return MergeWeights{std::exp(added - lse), std::exp(before - lse), lse};
                     }}},
      // the backward
      {.id = "dkdv-stay-local", .gradient_hops = [](int) { return 0; }},
      {.id = "hop-short", .gradient_hops = [](int right) { return std::max(right - 1, 0); }},
      {.id = "dkdv-overwritten", .overwrites_gradients = true},
      {.id = "dkdv-own-only",
       .part =
           [](const Part& part, int step, double) {
             scale(part.k, step == 0 ? 1.0F : 0.0F);
             scale(part.v, step == 0 ? 1.0F : 0.0F);
           }},
      {.id = "no-delta",
       .forward =
           [](Given& given, Own& own) {
             own.out.fill(0);
             given.out = own.out;
           }},
      {.id = "delta-own-shard", .forward = [](Given& given, Own& own) { given.out = own.out; }},
      {.id = "lse-own-shard-backward", .forward = [](Given& given, Own& own) { given.lse = own.lse; }},
      {.id = "dout-ones",
       .forward =
           [](Given& given, Own& own) {
             own.out.fill(1);
             given.grad_out = own.out;
           }},
      {.id = "dk-no-scale",
       .part = [](const Part& part, int, double by) { scale(part.k, static_cast<float>(1 / by)); }},
      {.id = "dq-no-scale", .dq_factor = [](double by) { return 1 / by; }},
      {.id = "gqa-first-head", .share = [](Index member, Index) { return member == 0 ? 1.0F : 0.0F; }},
      {.id = "gqa-last-head",
       .share = [](Index member, Index group) { return member + 1 == group ? 1.0F : 0.0F; }},
      {.id = "gqa-mean", .share = [](Index, Index group) { return 1 / static_cast<float>(group); }},
  };
  return all;
}

/// No id: a right ring. \throws InputError for an id that is not in the table
inline const RingMistake& ring_mistake(std::string_view id) {
  static const RingMistake right{};
  if (id.empty()) return right;
  const auto found = std::ranges::find(ring_mistakes(), id, &RingMistake::id);
  if (found == ring_mistakes().end()) throw InputError("no ring makes the mistake " + std::string(id));
  return *found;
}

}  // namespace ring_attention
