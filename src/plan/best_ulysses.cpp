#include "plan/best_ulysses.hpp"

#include "ring_attention/parallel/ulysses/heads.hpp"

namespace ring_attention::plan {

int best_ulysses(const Attention& layer, int ranks, bool causal, const Machine& machine, bool gradients) {
  const double seq = layer.tokens * ranks, keys = layer.keys > 0 ? layer.keys * ranks : seq;
  const double pairs = causal ? seq * (keys + 1) / 2 : seq * keys;
  const double width = static_cast<double>(layer.heads * layer.dim);
  const double compute = 4 * layer.batch * width * pairs / ranks / machine.attention_rate(layer.dim);
  const auto seconds_of = [&](int ulysses) {
    const Mesh mesh{1, ulysses, ranks / ulysses, 1};
    const Volume forward = hybrid_forward(layer, ulysses, mesh.ring),
                 backward = hybrid_backward(layer, ulysses, mesh.ring);
    const double exchange = all_to_all_seconds(mesh, machine, forward.all_to_all) * (gradients ? 2 : 1);
    if (mesh.ring == 1) return exchange + compute * (gradients ? 1 + backward_flops / backward_rate : 1);
    const LinkClass link = ring_link(mesh, machine);
    const double hop = link.seconds(forward.ring / (mesh.ring - 1)), merge = merge_seconds(layer, machine);
    const auto pass = [&](double flops, double of_a_hop) {
      const double step = compute * flops / mesh.ring + merge;
      return mesh.ring * step + (mesh.ring - 1) * exposed_hop({step, 0, of_a_hop, 0}, machine);
    };
    if (!gradients) return exchange + pass(1, hop);
    const double gradient_hop = link.seconds((backward.ring - forward.ring) / mesh.ring);
    return exchange + pass(1, hop) + pass(backward_flops / backward_rate, hop + gradient_hop) + gradient_hop;
  };
  int best = 1;
  for (int ulysses = 1; ulysses <= ranks; ++ulysses)
    if (ranks % ulysses == 0 && can_share_heads(layer.heads, layer.kv_heads, ulysses) &&
        seconds_of(ulysses) < seconds_of(best))
      best = ulysses;
  return best;
}

}  // namespace ring_attention::plan
