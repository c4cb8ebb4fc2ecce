// Lesson 15, beside the idea: what a ring sends for one token, and what the state of a query is.
#pragma once

#include "part.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::lesson_15 {

/// A model's layer and the context of all ranks, K and V in 2 bytes.
struct Model {
  const char* name;
  Index heads, kv_heads, dim, tokens, ranks;

  /// Sent by each rank for one token: a ring passes all shards but one on.
  [[nodiscard]] double ring_bytes() const {
    const Index numbers = (ranks - 1) * 2 * (tokens / ranks) * kv_heads * dim;
    return 2.0 * static_cast<double>(numbers);
  }
  /// In float: states to the rank that merges their head, D + 2 numbers, and out and lse back, D + 1.
  [[nodiscard]] double state_bytes() const {
    return static_cast<double>((ranks - 1) * heads * (2 * dim + 3) * 4) / static_cast<double>(ranks);
  }
};
inline constexpr std::array models{Model{"Llama 3 8B, 2^20 tokens, 8 ranks", 32, 8, 128, Index{1} << 20, 8},
                                   Model{"LLaMA 7B, 2^23 tokens, 32 ranks", 32, 32, 128, Index{1} << 23, 32}};

/// Bytes that a rank sends for one token when K,V go round a ring: the most of any rank, counted by the transport.
inline Index ring_bytes(const Communicator& comm, Index tokens) {
  const RandomProblem problem{{1, 4, 1, 16}, {1, 2, tokens, 16}, {0.25, Mask::causal(tokens - 1)}};
  const Placement placement(PlacementKind::striped, tokens, comm.size());
  const Tensor<double> q =
      problem.queries<double>(whole(1));  // each rank has the query, and asks for all keys
  BlockwiseEngine<double> engine(problem.scoring);
  engine.begin(q, whole(1));
  KvParcel<double> kv = problem.parcel<double>(placement, comm.rank());
  OverlappedTransport transport(comm);
  ring_forward(engine, transport, kv);
  return -min_over_ranks(comm, -transport.statistics().bytes_sent);
}

/// The same with the state of the query.
inline Index state_bytes(const Communicator& comm, Index tokens) {
  const RankShare part(comm, {{1, 4, tokens, 16}, {1, 2, tokens, 16}, tokens - 1});
  return -min_over_ranks(comm, -part.run(Lesson::no_mistake).sent.bytes_sent);
}

inline void show_failure(Lesson& lesson, const Communicator& comm) {
  Table table({"bytes a layer, token and rank", "K,V on a ring", "state of the query"});
  const auto decimal = [](double bytes) {
    return bytes >= 1e9 ? format("%.3g GB", bytes * 1e-9) : format("%.3g kB", bytes * 1e-3);
  };
  for (const Model& model : models)
    table.row({model.name, decimal(model.ring_bytes()), decimal(model.state_bytes())});
  const std::vector<Index> lengths{64, 256, 1024};
  std::vector<Index> ring, state;
  for (const Index tokens : lengths) {
    ring.push_back(ring_bytes(comm, tokens));
    state.push_back(state_bytes(comm, tokens));
    table.row({"counted here: " + std::to_string(tokens) + " tokens, " + counted(comm.size(), "rank"),
               human_bytes(ring.back()), human_bytes(state.back())});
  }
  lesson.print("bytes", table);
  const Model& seven = models[1];
  const double hop = seven.ring_bytes() / static_cast<double>(seven.ranks - 1);
  lesson.say(
      format("  On links of 186 GB/s a hop of the 7B ring takes %.3g ms, and a token of 32 layers %.3g s.",
             hop / 186e9 * 1e3, seven.ring_bytes() * 32 / 186e9));
  const Index others = comm.size() - 1, own = Index{4} * (16 + 2) * 8;
  bool all_other_shards = true;
  for (std::size_t i = 0; i < lengths.size(); ++i)  // K and V of a token: 2 heads of 16 doubles each
    all_other_shards =
        all_other_shards && ring[i] == (others == 0 ? 0 : lengths[i] - lengths[i] / comm.size()) * 512;
  lesson.check("a ring sends K and V of all shards but one, more with each token", all_other_shards);
  lesson.check("the state has the same size for each length", state == std::vector<Index>(3, others * own));
}

}  // namespace ring_attention::lesson_15
