#include "plan/volume.hpp"

#include <algorithm>

namespace ring_attention::plan {
namespace {

/// The part of an array that a rank sends when it has one piece for each of n ranks, itself included.
double to_others(int n) { return static_cast<double>(n - 1) / n; }

/// K and V of a ring's parcel, or dK and dV, elements: `tokens` is U times that of a rank, the heads are 1 / U of them.
double parcel(const Attention& layer, int ulysses, double element) {
  return 2 * layer.key_bytes(sent_kv_heads(layer, ulysses)) / layer.element * element;
}

}  // namespace

double sent_kv_heads(const Attention& layer, int ulysses) {
  return static_cast<double>(std::max<Index>(layer.kv_heads, ulysses));
}

Volume hybrid_forward(const Attention& layer, int ulysses, int ring) {
  Volume volume;
  volume.all_to_all =
      to_others(ulysses) * 2 *
      (layer.bytes(static_cast<double>(layer.heads)) + layer.key_bytes(sent_kv_heads(layer, ulysses)));
  volume.ring = (ring - 1) * parcel(layer, ulysses, layer.element);
  return volume;
}

Volume hybrid_backward(const Attention& layer, int ulysses, int ring) {
  Volume volume = hybrid_forward(layer, ulysses, ring);
  if (ring > 1) volume.ring += ring * parcel(layer, ulysses, layer.sum_element);
  return volume;
}

Volume all_gather_forward(const Attention& layer, int ranks) {
  return {0, 0, (ranks - 1) * parcel(layer, 1, layer.element)};
}

Volume all_gather_backward(const Attention& layer, int ranks) {
  return {0, 0, (ranks - 1) * (parcel(layer, 1, layer.element) + parcel(layer, 1, layer.sum_element))};
}

double tensor_bytes(double batch_tokens, Index hidden, double element, int tensor) {
  return 4 * to_others(tensor) * batch_tokens * static_cast<double>(hidden) * element;
}

double decode_bytes(Index heads, Index dim, double element, int ranks) {
  const double there = static_cast<double>(dim + 2), back = static_cast<double>(dim + 1);
  return to_others(ranks) * static_cast<double>(heads) * (there + back) * element;
}

double weight_bytes(double parameters, double element, int shards) {
  return to_others(shards) * parameters * element;
}

}  // namespace ring_attention::plan
