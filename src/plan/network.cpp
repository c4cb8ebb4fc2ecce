#include "plan/network.hpp"

#include <algorithm>
#include <limits>

#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::plan {

double run_flows(const std::vector<LinkClass>& links, std::vector<Flow>& flows) {
  std::vector<double> free(links.size(), 0.0);
  double last = 0;
  for (Flow& flow : flows) {
    double start = 0, alpha = 0, beta = std::numeric_limits<double>::infinity();
    for (const int link : flow.path) {
      const auto l = static_cast<std::size_t>(link);
      start = std::max(start, free[l]);
      alpha = std::max(alpha, links[l].alpha);
      beta = std::min(beta, links[l].beta);
    }
    for (const int link : flow.path) {
      const auto l = static_cast<std::size_t>(link);
      free[l] = start + flow.bytes / links[l].beta;
    }
    flow.arrived = start + alpha + flow.bytes / beta;
    last = std::max(last, flow.arrived);
  }
  return last;
}

Network::Network(const Machine& machine, int ranks)
    : ranks_(ranks), node_(static_cast<int>(machine.node)), nics_(static_cast<int>(machine.nics)) {
  require(ranks >= 1, "Network: at least one device");
  links_.assign(2 * static_cast<std::size_t>(ranks), machine.link);
  const int nodes = (ranks + node_ - 1) / node_;
  links_.resize(links_.size() + 2 * static_cast<std::size_t>(nodes * nics_), machine.nic);
}

int Network::nic(int rank) const {
  const int node = rank / node_, place = rank - node * node_;
  return node * nics_ + std::min(nics_ - 1, place * nics_ / node_);
}

std::vector<int> Network::path(int from, int to) const {
  const int egress = 2 * from, ingress = 2 * to + 1;
  if (from / node_ == to / node_) return {egress, ingress};
  return {egress, 2 * (ranks_ + nic(from)), 2 * (ranks_ + nic(to)) + 1, ingress};
}

double all_to_all_seconds(const Machine& machine, int ranks, double piece_bytes) {
  const Network network(machine, ranks);
  std::vector<Flow> flows;
  for (int distance = 1; distance < ranks; ++distance)
    for (int from = 0; from < ranks; ++from)
      flows.push_back({network.path(from, Ring{from, ranks}.owner(distance)), piece_bytes});
  return run_flows(network.links(), flows);
}

}  // namespace ring_attention::plan
