/// \file
/// The times of a ring as a recurrence: two lines instead of a simulation of events, as long as each link has one user.
///
/// With b(r, t) the begin of step t on rank r, C(r, t) its computing and h(r, t) the hop into r during it:
///
///     arrival     a(r, t)     = max(b(r, t), b(r - 1, t)) + h(r, t)           both ends have posted the message
///     next step   b(r, t + 1) = max(b(r, t) + C(r, t), a(r, t), a(r + 1, t))  computed, received, sent
///
/// A rank waits for its neighbours only. So noise of one rank reaches another one late, and slack absorbs it. A model
/// in which all ranks wait for the slowest one at every step (a barrier) overstates it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {

/// When a hop begins, and who waits for it.
enum class Hops {
  overlapped,  ///< with the step, once both neighbours are in it: OverlappedTransport, NcclTransport
  at_finish,   ///< as overlapped, and the receiver takes the parcel when it has computed: LoopbackTransport
  in_turn,  ///< after the step; even ranks send first, odd ranks receive first: OddEvenTransport without its barrier
  lockstep  ///< a barrier ends each step: all ranks wait for the slowest computing or hop
};

namespace detail {

/// Arrivals of an odd/even exchange: the hop into rank r begins when its sender is ready to send and r to receive.
template <class HopInto>
void exchange_in_turn(const std::vector<double>& ready, std::vector<double>& arrival, HopInto hop) {
  const std::size_t n = ready.size();
  for (std::size_t s = 0; s + 1 < n; s += 2) arrival[s + 1] = std::max(ready[s], ready[s + 1]) + hop(s + 1);
  const bool odd =
      n > 1 && n - n / 2 > n / 2;  // the last rank and rank 0 are even: it waits until 0 has sent
  if (odd) arrival[0] = std::max(ready[n - 1], arrival[1]) + hop(0);
  for (std::size_t s = 1; s < n; s += 2) {
    const std::size_t to = s + 1 < n ? s + 1 : 0;
    arrival[to] = std::max(arrival[s], to + 1 < n ? arrival[to + 1] : arrival[0]) + hop(to);
  }
}

}  // namespace detail

/// Seconds until the last rank has ended its last step. O(ranks * steps) time, O(ranks) memory.
///
/// \param steps  a forward has as many as ranks
/// \param hops  the first `hops` steps have one: ranks - 1 in a forward
/// \param compute  (rank, step) -> seconds
/// \param hop  (rank, step) -> seconds of the hop into that rank
template <class Compute, class Hop>
[[nodiscard]] double ring_seconds(int ranks, int steps, int hops, const Compute& compute, const Hop& hop,
                                  Hops kind = Hops::overlapped) {
  require(ranks >= 1 && steps >= 0 && (ranks > 1 || hops == 0), "ring_seconds: a hop needs two ranks");
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<double> begin(n, 0.0), computed(n), arrival(n);
  for (int t = 0; t < steps; ++t) {
    for (std::size_t r = 0; r < n; ++r) computed[r] = begin[r] + compute(static_cast<int>(r), t);
    if (t >= hops && kind != Hops::lockstep) {
      std::swap(begin, computed);
      continue;
    }
    const auto into = [&](std::size_t r) { return t < hops ? hop(static_cast<int>(r), t) : 0.0; };
    switch (kind) {
      case Hops::overlapped:
        arrival[0] = std::max(begin[0], begin[n - 1]) + into(0);
        for (std::size_t r = 1; r < n; ++r) arrival[r] = std::max(begin[r], begin[r - 1]) + into(r);
        break;
      case Hops::at_finish:
        arrival[0] = std::max(computed[0], begin[n - 1] + into(0));
        for (std::size_t r = 1; r < n; ++r) arrival[r] = std::max(computed[r], begin[r - 1] + into(r));
        break;
      case Hops::in_turn: detail::exchange_in_turn(computed, arrival, into); break;
      case Hops::lockstep:
        for (std::size_t r = 0; r < n; ++r) computed[r] = std::max(computed[r], begin[r] + into(r));
        begin.assign(n, *std::max_element(computed.begin(), computed.end()));
        continue;
    }
    for (std::size_t r = 0; r + 1 < n; ++r)
      begin[r] = std::max(computed[r], std::max(arrival[r], arrival[r + 1]));
    begin[n - 1] = std::max(computed[n - 1], std::max(arrival[n - 1], arrival[0]));
  }
  return *std::max_element(begin.begin(), begin.end());
}

}  // namespace ring_attention::plan
