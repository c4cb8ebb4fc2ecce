#include "plan/ring_step.hpp"

#include <algorithm>

namespace ring_attention::plan {
namespace {

constexpr double launch = 10e-6;  // seconds of a kernel's start, once a step of a ring

double in_double(Index n) { return static_cast<double>(n); }

}  // namespace

double all_to_all_seconds(const Mesh& mesh, const Machine& machine, double bytes) {
  if (mesh.ulysses == 1) return 0;
  const double here = std::max(1.0, in_double(machine.node) / mesh.tensor);  // of its ranks, in one node
  if (mesh.ulysses <= here) return 2 * machine.link.alpha + bytes / machine.link.beta;
  const double outside = bytes * (mesh.ulysses - here) / (mesh.ulysses - 1);
  const LinkClass nic = machine.shared_nic(in_double(machine.node));
  return 2 * nic.alpha + std::max((bytes - outside) / machine.link.beta, outside / nic.beta);
}

double merge_seconds(const Attention& layer, const Machine& machine) {
  return launch + 2 * layer.bytes(in_double(layer.heads)) / layer.element * float_bytes / machine.memory_rate;
}

LinkClass ring_link(const Mesh& mesh, const Machine& machine, bool inside) {
  const Index stride = Index{mesh.tensor} * mesh.ulysses;
  if (stride * mesh.ring <= machine.node || (inside && stride < machine.node)) return machine.link;
  const LinkClass nic = machine.shared_nic(static_cast<double>(std::min(stride, machine.node)));
  return {std::max(nic.alpha, machine.link.alpha), std::min(nic.beta, machine.link.beta)};
}

double exposed_hop(const RingStep& step, const Machine& machine) {
  return machine.hides ? std::max(0.0, step.hop - step.compute) : step.hop;
}

}  // namespace ring_attention::plan
