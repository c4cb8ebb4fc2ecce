#include "diagnose/rules.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/attention/softmax.hpp"

namespace ring_attention::diagnose {

Slots::Slots(const Problem& problem) : job_(problem.job), tokens_(problem.the_case.tokens) {
  const Placement placement(job_.placement, tokens_, job_.ring());
  count_ = placement.max_tokens();
  Index behind = tokens_;  // positions of slots without a token
  for (int rank = 0; rank < job_.ring(); ++rank) {
    const std::vector<Index> tokens = positions(placement.ranges(rank));
    for (Index slot = 0; slot < count_; ++slot)
      places_.push_back(
          {rank, slot, slot < std::ssize(tokens) ? tokens[static_cast<std::size_t>(slot)] : behind++});
  }
  if (job_.ulysses == 1 || count_ % job_.ulysses != 0) return;
  const Placement world(job_.placement, ranks() * count_, job_.ranks);
  taken_.resize(places_.size());
  for (int rank = 0; rank < job_.ranks; ++rank) {
    Index n = 0;
    for (const Index position : positions(world.ranges(rank)))
      taken_[static_cast<std::size_t>(position)] = nth(job_.tokens_of(rank, ranks() * count_), n++);
  }
}

Index Slots::nth(const TokenRanges& tokens, Index n) const {
  const std::vector<Index> all = positions(tokens);
  return n < std::ssize(all) ? all[static_cast<std::size_t>(n)] : tokens_ + n;
}

Index Slots::position(PlacementKind kind, const Place& place) const {
  return nth(Placement(kind, ranks() * count_, ranks()).ranges(place.rank), place.slot);
}

Index Slots::position_if_placed_over_world(const Place& place) const {
  return taken_.empty() ? place.position : taken_[static_cast<std::size_t>(place.position)];
}

Index Slots::position_with_swapped_axes(const Place& place) const {
  const int other = job_.ring();  // ranks of Ulysses, where the axes are exchanged
  if (job_.ulysses == 1 || job_.ulysses == other || count_ % job_.ulysses != 0) return place.position;
  const Index slice = count_ / job_.ulysses;
  const int world = static_cast<int>(place.slot / slice) + job_.ulysses * place.rank;
  const Job swapped{job_.ranks, job_.placement, other};
  return nth(swapped.tokens_of(world, ranks() * count_), place.slot % slice);
}

namespace {

bool causal(const Case& c, const Pair& pair) { return !c.causal || pair.key.position <= pair.query.position; }

bool window(const Case& c, const Pair& pair) {
  return c.window == 0 || pair.query.position - pair.key.position < c.window;
}

bool documents(const Case& c, const Pair& pair) {
  const auto of = [&](Index position) { return std::ranges::upper_bound(c.documents, position); };
  return of(pair.query.position) == of(pair.key.position);
}

/// A slot that holds no token is padding, too.
bool padding(const Case& c, const Pair& pair) {
  return pair.content.position >= c.padding && pair.content.position < c.tokens;
}

Factors to_common_maximum(double m, double m_new, double m_merged) {
  const double old_factor = rescale(m, m_merged), new_factor = rescale(m_new, m_merged);
  return {old_factor, old_factor, new_factor, new_factor};
}

}  // namespace

Weights weights_by_lse(const PieceState& before, const PieceState& piece) {
  const double most = std::max(before.lse, piece.lse);
  const double lse = most + std::log(std::exp(before.lse - most) + std::exp(piece.lse - most));
  return {std::exp(before.lse - lse), std::exp(piece.lse - lse), lse};
}

Rules::Rules()
    : causal(diagnose::causal),
      window(diagnose::window),
      documents(diagnose::documents),
      padding(diagnose::padding),
      scale([](const Case& c) { return c.scale(); }),
      bias([](const Case&, double of_pair) { return of_pair; }),
      kv_head([](const Problem& problem, Index head) { return head / problem.the_case.group(); }),
      bias_head([](const Problem&, Index head) { return head; }),
      slope_head(bias_head),
      sink_head(bias_head),
      maximum([](double of_scores) { return of_scores; }),
      factors(to_common_maximum),
      sink_times([](int, int) { return 1.0; }),
      returned_lse([](const std::vector<RowState>&, double lse) { return lse; }),
      dout([](const Slots&, const Problem& problem, const Place& place, Index head, Index column) {
        return problem.dout.view()(0, head, place.position, column);
      }),
      dq_factor([](const Case&) { return 1.0; }),
      dk_factor(dq_factor),
      add_dq([](Matrix<double>& sum, const Matrix<double>& part, int) { sum += part; }),
      add_dkdv(add_dq),
      dkdv_of([](const Problem&, Index) { return 1.0; }) {}

}  // namespace ring_attention::diagnose
