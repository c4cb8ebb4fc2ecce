// Lesson 10, beside the idea: what the library's code sends, counted by links that move nothing, beside the formulas.
#pragma once

#include "common/lesson.hpp"
#include "ring_attention/parallel/all_gather.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention::lesson_10 {

/// An all-to-all and a ring that count what rank 0 sends. What they receive stays zero.
class CountingAllToAll {
 public:
  explicit CountingAllToAll(int ranks) : ranks_(ranks) {}
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return ranks_; }
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }
  void exchange(const Pieces& pieces) { count_exchange(statistics_, pieces, 0, 0); }

 private:
  int ranks_;
  TransportStatistics statistics_;
};
class CountingTransport {
 public:
  explicit CountingTransport(int ranks) : ring_{0, ranks} {}
  [[nodiscard]] Ring ring() const { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }
  void start(const Exchange& exchange) { statistics_.bytes_sent += std::ssize(exchange.send); }
  void progress() {}
  void finish() {}
  void drain() {}

 private:
  Ring ring_;
  TransportStatistics statistics_;
};
struct ComputesNothing {
  void accumulate(const KeyValue<float>&, const Progress&) {}
  void accumulate(const KeyValue<float>&, const KeyValueGradient<float>&, const Progress&) {}
};

/// What a rank sends, in units of B c D elements, c tokens a rank.
struct Volume {
  Index all_to_all = 0, ring = 0;
  [[nodiscard]] Index total() const { return all_to_all + ring; }
  [[nodiscard]] std::string text() const { return std::to_string(all_to_all) + " + " + std::to_string(ring); }
  friend bool operator==(const Volume&, const Volume&) = default;
};
struct LayerHeads {
  Index query, kv;
};

/// Of a forward, and of a backward with gradients of the same type: q, k, v (dO) there, out (dQ, dK, dV) back; the
/// ring.
[[nodiscard]] inline Volume forward_formula(const LayerHeads& heads, Index ranks, Index ulysses) {
  const Index kv = std::max(heads.kv, ulysses);
  return {(ulysses - 1) * (2 * heads.query + 2 * kv) / ulysses, (ranks / ulysses - 1) * 2 * kv};
}
[[nodiscard]] inline Volume backward_formula(const LayerHeads& heads, Index ranks, Index ulysses) {
  const Index kv = std::max(heads.kv, ulysses), rings = ranks / ulysses;
  return {forward_formula(heads, ranks, ulysses).all_to_all,
          (rings - 1) * 2 * kv + (rings > 1 ? rings * 2 * kv : 0)};
}

/// The same, counted: one token a rank, one number a token. [0] forward, [1] backward
[[nodiscard]] inline std::array<Volume, 2> counted_volumes(const LayerHeads& heads, int ranks, int ulysses) {
  const HybridPlace place(0, ranks, ulysses);
  const Placement shards(PlacementKind::contiguous, ranks, place.ring.size);
  CountingAllToAll link(ulysses);
  const HeadLayout layout(link, place, shards, shards, heads.query, heads.kv);
  const Tensor<float> q({1, heads.query, 1, 1}), kv({1, heads.kv, 1, 1});
  ComputesNothing engine;
  const auto unit = [](Index bytes) { return bytes / static_cast<Index>(sizeof(float)); };

  const Tensor<float> own_q = layout.queries_to_heads(q.view()), own_k = layout.keys_to_heads(kv.view()),
                      own_v = layout.keys_to_heads(kv.view());
  KvParcel<float> parcel(own_k.shape(), shards, 0), again(own_k.shape(), shards, 0),
      gradients(own_k.shape(), shards, 0);
  CountingTransport forward(place.ring.size), kv_again(place.ring.size), sums(place.ring.size);
  ring_forward(engine, forward, parcel);
  (void)layout.queries_to_sequence(own_q.view());
  const Index sent = link.statistics().bytes_sent;

  (void)layout.queries_to_heads(q.view());
  ring_backward(engine, kv_again, sums, again, gradients);
  (void)layout.queries_to_sequence(own_q.view());
  (void)layout.keys_to_sequence(own_k.view());
  (void)layout.keys_to_sequence(own_v.view());
  return {Volume{unit(sent), unit(forward.statistics().bytes_sent)},
          Volume{unit(link.statistics().bytes_sent - sent),
                 unit(kv_again.statistics().bytes_sent + sums.statistics().bytes_sent)}};
}

/// K,V of all ranks to all.
[[nodiscard]] inline Index counted_all_gather(const LayerHeads& heads, int ranks) {
  CountingAllToAll link(ranks);
  KvShards<float> kv({1, heads.kv, ranks, 1}, Placement(PlacementKind::contiguous, ranks, ranks));
  all_gather(link, kv);
  return link.statistics().bytes_sent / static_cast<Index>(sizeof(float));
}

/// The heads of some layers, and numbers of ranks.
struct Layer {
  const char* name;
  LayerHeads heads;
  int ranks;
};
inline constexpr std::array layers{Layer{"32 of 32", {32, 32}, 8}, Layer{"32 of 32", {32, 32}, 64},
                                   Layer{"32 of 8", {32, 8}, 8},   Layer{"32 of 8", {32, 8}, 64},
                                   Layer{"128 of 8", {128, 8}, 8}, Layer{"128 of 8", {128, 8}, 64},
                                   Layer{"32 of 1", {32, 1}, 8},   Layer{"32 of 1", {32, 1}, 64}};

/// 32 full heads, and 128 heads with 8 KV heads, on 8 ranks: a ring and Ulysses.
inline void show_failure(Lesson& lesson) {
  std::vector<std::vector<Index>> figures;
  Table table({"8 ranks, sent by each", "ring", "Ulysses", ""});
  for (const auto& [name, heads] :
       {std::pair<const char*, LayerHeads>{"32 heads", {32, 32}}, {"128 heads, 8 KV heads", {128, 8}}}) {
    const Index ring = counted_volumes(heads, 8, 1)[0].total(),
                ulysses = counted_volumes(heads, 8, 8)[0].total();
    table.row({name, std::to_string(ring), std::to_string(ulysses),
               ring > ulysses ? "the ring sends more" : "Ulysses sends more"});
    figures.push_back({ring, ulysses});
  }
  lesson.print(table);
  lesson.say("  In units of B c D elements: one number a token of the rank and a dimension of a head.");
  lesson.check("a ring sends 448 where Ulysses sends 112, and 112 where Ulysses sends 238",
               figures == std::vector<std::vector<Index>>{{448, 112}, {112, 238}});
  lesson.record("failure", figures);
}

/// The table of volumes, counted.
inline void show_volumes(Lesson& lesson) {
  Table table({"query heads of KV heads", "ranks", "U = 1", "2", "4", "8", "16", "32", "64", "all-gather"});
  std::vector<std::vector<Index>> all_to_all, ring;
  std::vector<Index> gathered;
  bool forward = true, backward = true, all = true;
  for (const Layer& layer : layers) {
    std::vector<std::string> cells{layer.name, std::to_string(layer.ranks)};
    all_to_all.emplace_back();
    ring.emplace_back();
    for (int ulysses = 1; ulysses <= 64; ulysses *= 2) {
      if (ulysses > layer.ranks || !can_share_heads(layer.heads.query, layer.heads.kv, ulysses)) {
        cells.emplace_back("");
        continue;
      }
      const auto counted = counted_volumes(layer.heads, layer.ranks, ulysses);
      forward = forward && counted[0] == forward_formula(layer.heads, layer.ranks, ulysses);
      backward = backward && counted[1] == backward_formula(layer.heads, layer.ranks, ulysses);
      cells.push_back(counted[0].text());
      all_to_all.back().push_back(counted[0].all_to_all);
      ring.back().push_back(counted[0].ring);
    }
    gathered.push_back(counted_all_gather(layer.heads, layer.ranks));
    all = all && gathered.back() == 2 * layer.heads.kv * (layer.ranks - 1);
    cells.push_back(std::to_string(gathered.back()));
    table.row(cells);
  }
  lesson.print(table);
  lesson.say(
      "  all-to-all + ring; U ranks share heads, the others are rings. Counted by links of the library.");
  lesson.check("forward: (U - 1) / U (2 Hq + 2 max(Hkv, U)) + (R - 1) 2 max(Hkv, U)", forward);
  lesson.check("backward: the same, and R hops of dK,dV", backward);
  lesson.check("all-gather: (N - 1) 2 Hkv, as the ring", all);
  lesson.record("volume_all_to_all", all_to_all);
  lesson.record("volume_ring", ring);
  lesson.record("volume_all_gather", gathered);
}

/// What the library says where heads cannot be shared.
inline void show_head_rule(Lesson& lesson) {
  bool refused = true;
  for (const auto& [heads, ranks] : {std::pair<LayerHeads, int>{{32, 8}, 12}, {{32, 8}, 64}, {{12, 6}, 4}})
    try {
      const HeadShare share(heads.query, heads.kv, ranks);
      refused = false;
    } catch (const InputError& error) {
      lesson.say(std::string("  ") + error.what());
    }
  lesson.check("heads that ranks cannot share are refused, with the numbers of ranks that would do", refused);
}

}  // namespace ring_attention::lesson_10
