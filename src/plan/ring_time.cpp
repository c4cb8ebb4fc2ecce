#include "plan/ring_time.hpp"

#include <algorithm>
#include <numeric>

#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

StepFlops forward_flops(const Shape& q, const Mask& mask, const Placement& queries, const Placement& keys) {
  StepFlops flops;
  for (int rank = 0; rank < queries.ranks(); ++rank) {
    const Ring ring{rank, queries.ranks()};
    std::vector<double>& steps = flops.emplace_back();
    for (int step = 0; step < ring.steps(); ++step) {
      const Index pairs = visible_pairs(mask, queries.ranges(rank), keys.ranges(ring.owner(step)));
      steps.push_back(4.0 * static_cast<double>(pairs) * static_cast<double>(q.batch * q.heads * q.dim));
    }
  }
  return flops;
}

double busiest(const StepFlops& flops) {
  double most = 0;
  for (const auto& steps : flops) most = std::max(most, std::accumulate(steps.begin(), steps.end(), 0.0));
  return most;
}

RingTime predict(const StepFlops& flops, double hop_bytes, const Rates& rates) {
  RingTime time;
  const std::size_t steps = flops.size();
  for (std::size_t step = 0; step < steps; ++step) {
    double slowest = 0;
    for (const auto& rank : flops) {
      slowest = std::max(slowest, rank[step] / rates.flops_per_second);
      time.ideal += rank[step] / rates.flops_per_second / static_cast<double>(steps);
    }
    const double hop = step + 1 < steps ? hop_bytes / rates.bytes_per_second : 0;
    time.overlapped += std::max(slowest, hop);
    time.in_turn += slowest + hop;
  }
  return time;
}

}  // namespace ring_attention
