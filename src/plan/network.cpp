#include "plan/network.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::plan {
namespace {

/// The flows that wait for each flow.
std::vector<std::vector<int>> successors(const std::vector<Flow>& flows) {
  std::vector<std::vector<int>> after(flows.size());
  for (std::size_t i = 0; i < flows.size(); ++i)
    if (flows[i].after >= 0) after[static_cast<std::size_t>(flows[i].after)].push_back(static_cast<int>(i));
  return after;
}

}  // namespace

double run_flows(const std::vector<LinkClass>& links, std::vector<Flow>& flows) {
  using Event =
      std::pair<double, int>;  // when a flow is ready, and which one: equal times in the order of flows
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  for (std::size_t i = 0; i < flows.size(); ++i)
    if (flows[i].after < 0) events.emplace(flows[i].ready, static_cast<int>(i));
  const auto waiting = successors(flows);
  std::vector<double> free(links.size(), 0.0);
  double last = 0;
  for (; !events.empty(); events.pop()) {
    const auto [ready, index] = events.top();
    Flow& flow = flows[static_cast<std::size_t>(index)];
    double start = ready, alpha = 0, beta = std::numeric_limits<double>::infinity();
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
    for (const int next : waiting[static_cast<std::size_t>(index)])
      events.emplace(std::max(flow.arrived, flows[static_cast<std::size_t>(next)].ready), next);
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

double all_gather_seconds(const Machine& machine, int ranks, double piece_bytes) {
  const Network network(machine, ranks);
  std::vector<Flow> flows;
  for (int hop = 0; hop + 1 < ranks; ++hop)
    for (int from = 0; from < ranks; ++from) {
      const int arrived = hop == 0 ? -1 : (hop - 1) * ranks + Ring{from, ranks}.prev();
      flows.push_back({network.path(from, Ring{from, ranks}.next()), piece_bytes, 0, arrived});
    }
  return run_flows(network.links(), flows);
}

double double_ring_seconds(const Machine& machine, int nodes, double compute, double hop_bytes) {
  const int width = static_cast<int>(machine.node), ranks = nodes * width;
  const Network network(machine, ranks);
  std::vector<Flow> outer;
  for (int rank = 0; nodes > 1 && rank < ranks; ++rank)
    outer.push_back(
        {network.path(rank, Axis{width, nodes}.at(rank, Axis{width, nodes}.ring(rank).next())), hop_bytes});
  const double step = std::max(compute, width > 1 ? machine.link.seconds(hop_bytes) : 0.0);
  const double inner = (width - 1) * step + compute;  // the last of them has no inner hop
  return (nodes - 1) * std::max(inner, run_flows(network.links(), outer)) + inner;
}

}  // namespace ring_attention::plan
