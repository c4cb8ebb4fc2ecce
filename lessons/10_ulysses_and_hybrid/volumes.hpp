// Lesson 10, beside the idea: what the library's code sends, counted by links that move nothing, beside the formulas.
#pragma once

#include "common/lesson.hpp"
#include "ring_attention/parallel/all_gather/all_gather.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"

namespace ring_attention::lesson_10 {

/// An all-to-all and a ring that count what rank 0 sends. What they receive stays zero.
class CountingAllToAll : public AllToAll {
 public:
  explicit CountingAllToAll(int ranks) : ranks_(ranks) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return ranks_; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void all_to_all(const Pieces& pieces) override { count_exchange(statistics_, pieces, 0, 0); }

 private:
  int ranks_;
  TransportStatistics statistics_;
};
class CountingTransport : public Transport {
 public:
  explicit CountingTransport(int ranks) : ring_{0, ranks} {}
  [[nodiscard]] Ring ring() const override { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void start(const Hop& hop) override { statistics_.bytes_sent += std::ssize(hop.send); }
  void finish() override {}
  void drain() override {}

 private:
  Ring ring_;
  TransportStatistics statistics_;
};
class CountingLinks : public Links {
 public:
  explicit CountingLinks(const RankGrid& grid) : ring_(grid.ring.size), ulysses_(grid.ulysses.size) {}
  [[nodiscard]] std::unique_ptr<Transport> transport(Channel, std::size_t) override {
    return std::make_unique<CountingTransport>(ring_.size());
  }
  [[nodiscard]] AllToAll& ring() override { return ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return std::make_unique<CountingAllToAll>(axis.size);
  }

 private:
  CountingAllToAll ring_, ulysses_;
};

/// What a rank sends, in units of B c D elements, c tokens a rank.
struct Volume {
  Index all_to_all = 0, ring = 0;
  [[nodiscard]] Index total() const { return all_to_all + ring; }
  [[nodiscard]] std::string text() const { return std::to_string(all_to_all) + "+" + std::to_string(ring); }
  friend bool operator==(const Volume&, const Volume&) = default;
  friend Volume operator-(const Volume& a, const Volume& b) {
    return {a.all_to_all - b.all_to_all, a.ring - b.ring};
  }
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

/// One token a rank, one number a token.
[[nodiscard]] inline SharedAttention one_token_a_rank(const LayerHeads& heads, const RankGrid& grid,
                                                      const Division& division) {
  const Index tokens = Index{grid.ulysses.size} * grid.ring.size;
  return {grid,
          division,
          Placement(PlacementKind::contiguous, tokens, grid.ring.size),
          {1, heads.query, tokens, 1},
          {1, heads.kv, tokens, 1},
          {}};
}

/// The same, counted. [0] forward, [1] backward
[[nodiscard]] inline std::array<Volume, 2> counted_volumes(const LayerHeads& heads, int ranks, int ulysses) {
  const RankGrid grid(0, ranks, ulysses);
  const CpuDevice<float> device;
  CountingLinks links(grid);
  ContextParallel<float> attention(device, links, one_token_a_rank(heads, grid, hybrid(ulysses)));
  const HeadLayout& layout = attention.layout();
  const Tensor<float> q({1, heads.query, 1, 1}), kv({1, heads.kv, 1, 1});
  const auto sent = [&] {
    constexpr Index element = sizeof(float);
    return Volume{exchanged(links).bytes_sent / element, attention.hops().bytes_sent / element};
  };

  const auto own_q = layout.to_heads(Held::queries, q), own_k = layout.to_heads(Held::keys, kv),
             own_v = layout.to_heads(Held::keys, kv);
  auto forward = attention.begin_forward(own_q, attention.kv(own_k, own_v));
  attention.travel(forward);
  const AttentionResult<float> own = forward.engine->finish();
  (void)layout.to_sequence(Held::queries, own.out);
  const Volume by_forward = sent();

  const auto grad_out = layout.to_heads(Held::queries, q);
  auto backward = attention.begin_backward({own_q, own.out, own.lse, grad_out}, attention.kv(own_k, own_v));
  attention.travel(backward);
  (void)attention.finish(backward);
  return {by_forward, sent() - by_forward};
}

/// K,V of all ranks to all.
[[nodiscard]] inline Index counted_all_gather(const LayerHeads& heads, int ranks) {
  const RankGrid grid(0, ranks, 1);
  const CpuDevice<float> device;
  CountingLinks links(grid);
  ContextParallel<float> attention(device, links, one_token_a_rank(heads, grid, all_gather()));
  const Tensor<float> q({1, heads.query, 1, 1}), kv({1, heads.kv, 1, 1});
  (void)attention.forward(q, kv, kv);
  return exchanged(links).bytes_sent / static_cast<Index>(sizeof(float));
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
  std::vector<std::pair<Index, Index>> sent;
  Table table({"8 ranks, sent by each", "ring", "Ulysses", ""});
  for (const auto& [name, heads] :
       {std::pair<const char*, LayerHeads>{"32 heads", {32, 32}}, {"128 heads, 8 KV heads", {128, 8}}}) {
    const Index ring = counted_volumes(heads, 8, 1)[0].total(),
                ulysses = counted_volumes(heads, 8, 8)[0].total();
    table.row({name, std::to_string(ring), std::to_string(ulysses),
               ring > ulysses ? "the ring sends more" : "Ulysses sends more"});
    sent.emplace_back(ring, ulysses);
  }
  lesson.print("failure", table);
  lesson.say("  In units of B c D elements: one number a token of the rank and a dimension of a head.");
  lesson.check("a ring sends 448 where Ulysses sends 112, and 112 where Ulysses sends 238",
               sent == std::vector<std::pair<Index, Index>>{{448, 112}, {112, 238}});
}

/// The table of volumes, counted.
inline void show_volumes(Lesson& lesson) {
  Table table({"Hq of Hkv", "ranks", "U = 1", "2", "4", "8", "16", "32", "64", "all-gather"});
  bool forward = true, backward = true, all = true;
  for (const Layer& layer : layers) {
    std::vector<std::string> cells{layer.name, std::to_string(layer.ranks)};
    for (int ulysses = 1; ulysses <= 64; ulysses *= 2) {
      if (ulysses > layer.ranks || !can_share_heads(layer.heads.query, layer.heads.kv, ulysses)) {
        cells.emplace_back("");
        continue;
      }
      const auto counted = counted_volumes(layer.heads, layer.ranks, ulysses);
      forward = forward && counted[0] == forward_formula(layer.heads, layer.ranks, ulysses);
      backward = backward && counted[1] == backward_formula(layer.heads, layer.ranks, ulysses);
      cells.push_back(counted[0].text());
    }
    const Index gathered = counted_all_gather(layer.heads, layer.ranks);
    all = all && gathered == 2 * layer.heads.kv * (layer.ranks - 1);
    cells.push_back(std::to_string(gathered));
    table.row(cells);
  }
  lesson.print("volumes", table);
  lesson.say(
      "  all-to-all + ring; U ranks share heads, the others are rings. Counted by links of the library.");
  lesson.check("forward: (U - 1) / U (2 Hq + 2 max(Hkv, U)) + (R - 1) 2 max(Hkv, U)", forward);
  lesson.check("backward: the same, and R hops of dK,dV", backward);
  lesson.check("all-gather: (N - 1) 2 Hkv, as the ring", all);
}

/// What the library says where heads cannot be shared.
inline void show_head_rule(Lesson& lesson) {
  bool refused = true;
  for (const auto& [heads, ranks] : {std::pair<LayerHeads, int>{{32, 8}, 12}, {{32, 8}, 64}, {{12, 6}, 4}})
    try {
      require_shareable(heads.query, heads.kv, ranks);
      refused = false;
    } catch (const InputError& error) {
      lesson.say(std::string("  ") + error.what());
    }
  lesson.check("heads that ranks cannot share are refused, with the numbers of ranks that would do", refused);
}

}  // namespace ring_attention::lesson_10
