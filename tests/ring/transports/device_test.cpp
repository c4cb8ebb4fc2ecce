// Rings of virtual ranks on one GPU: each rank a thread with a stream, parcels in device memory.

#include "ring_attention/ring/transports/staged.hpp"

#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"
#include "support/backward_runs.hpp"

namespace ring_attention::test {
namespace {

using cuda::DeviceMemory;
using cuda::Fp16;

/// Bytes of the largest parcel, of gradients.
std::size_t most_bytes(const Case& what) {
  return static_cast<std::size_t>(2 * what.kv().size()) * sizeof(float);
}

/// Makes the transports of a rank: through the host, or from device memory to device memory.
struct Staged {
  using Link = StagedTransport<LoopbackTransport>;
  static constexpr auto copy = copy_in_host_memory;
  static Link transport(LoopbackWorld& world, const Case& what, int rank, int channel,
                        cuda::StreamHandle stream) {
    return Link(stream, most_bytes(what), world, rank, channel);
  }
};
struct Direct {
  using Link = SynchronizedTransport<LoopbackTransport>;
  static constexpr auto copy = copy_between_devices;
  static Link transport(LoopbackWorld& world, const Case&, int rank, int channel, cuda::StreamHandle stream) {
    return Link(stream, world, rank, channel);
  }
};

template <class T>
KvParcel<T, DeviceMemory> own_parcel(const Problem<float>& p, const Placement& keys, int rank,
                                     cuda::StreamHandle stream) {
  KvParcel<T, DeviceMemory> kv(p.k.shape(), keys, rank, DeviceMemory{stream}, hops_of(p.what, keys.ranks()));
  cuda::upload<T>(kv.k(), rows_of(p.k, keys.ranges(rank)), stream);
  cuda::upload<T>(kv.v(), rows_of(p.v, keys.ranges(rank)), stream);
  return kv;
}

struct WholeRing {
  std::vector<RankResult<float>> forward;
  Gradients<float> gradients;
};

/// Forward and backward on `ranks` virtual ranks.
template <class T, class Kind>
WholeRing run(const GradientProblem<float>& problem, int ranks) {
  const Problem<float>& p = problem.forward;
  const Case& what = p.what;
  WholeRing all{std::vector<RankResult<float>>(static_cast<std::size_t>(ranks)),
                {Tensor<float>(what.q()), Tensor<float>(what.kv()), Tensor<float>(what.kv()),
                 Tensor<float>(what.bias())}};
  std::mutex mutex;
  LoopbackWorld world(ranks, {}, std::chrono::seconds(60), Kind::copy);
  const Placement keys(what.kind, what.keys, ranks);
  world.run([&](int rank) {
    const cuda::Stream stream;
    const cuda::StreamHandle handle = stream.handle();
    const TokenRanges rows = query_ranges(p, rank, ranks);
    const auto q = cuda::uploaded<T>(rows_of(p.q, rows), handle);
    const auto grad_out = cuda::uploaded<T>(rows_of(problem.grad_out, rows), handle);
    auto kv = own_parcel<T>(p, keys, rank, handle);
    auto transport = Kind::transport(world, what, rank, 0, handle);
    CudaEngine<T> engine(what.scoring, {.stream = handle});
    const auto bias = bias_of(p, rows, handle);
    engine.begin(q, rows, bias);
    ring_forward(engine, transport, kv);
    const DeviceAttentionResult attended = engine.finish();
    all.forward[static_cast<std::size_t>(rank)] = {downloaded(attended, handle), transport.statistics(), 0};

    auto kv_again = own_parcel<T>(p, keys, rank, handle);
    KvParcel<float, DeviceMemory> gradients(p.k.shape(), keys, rank, DeviceMemory{handle});
    auto kv_transport = Kind::transport(world, what, rank, 0, handle),
         gradient_transport = Kind::transport(world, what, rank, 1, handle);
    CudaBackward<T> backward(what.scoring, {.stream = handle});
    backward.begin({q, attended.out, attended.lse, grad_out, bias}, rows);
    ring_backward(backward, kv_transport, gradient_transport, kv_again, gradients);
    const Tensor<float> dq = cuda::downloaded(backward.finish(), handle);
    const Tensor<float> dk = cuda::downloaded<float>(gradients.k(), handle);
    const Tensor<float> dv = cuda::downloaded<float>(gradients.v(), handle);
    const Tensor<float> dbias = cuda::downloaded(backward.bias_gradient(), handle);
    const std::lock_guard lock(mutex);
    put_rows(all.gradients.q, dq, rows);
    put_rows(all.gradients.k, dk, keys.ranges(rank));
    put_rows(all.gradients.v, dv, keys.ranges(rank));
    if (dbias.size() > 0) put_rows(all.gradients.bias, dbias, rows);
  });
  return all;
}

template <class T>
void expect_rings_agree(const Case& what, int ranks) {
  const auto problem = problem_in<T>(what, nullptr);
  const WholeRing staged = run<T, Staged>(problem, ranks), direct = run<T, Direct>(problem, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_TRUE(agrees_in(unit_of<T>, direct.forward[at].attended, problem.forward,
                          query_ranges(problem.forward, rank, ranks)));
    EXPECT_TRUE(same_bits(staged.forward[at].attended, direct.forward[at].attended)) << "of all transports";
    if constexpr (std::is_same_v<T, float>) {
      EXPECT_TRUE(sent_what_it_should(direct.forward[at].statistics, problem.forward, Ring{rank, ranks}));
    }
  }
  // The forward's out and lse are those of T's arithmetic, too.
  EXPECT_TRUE(gradients_agree_in(2 * unit_of<T>, direct.gradients, problem));
  EXPECT_TRUE(bitwise_equal(staged.gradients.q, direct.gradients.q) &&
              bitwise_equal(staged.gradients.k, direct.gradients.k) &&
              bitwise_equal(staged.gradients.v, direct.gradients.v));
  if (ranks > 1) return;
  const auto alone = forward_in_pieces<T>(problem.forward, {whole(what.keys)}, {}, whole(what.queries));
  EXPECT_TRUE(same_bits(alone, direct.forward[0].attended)) << "one rank's ring is the single device";
}

TEST(DeviceRings, AgreeWithTheReferenceForwardAndBackward) {
  for_each_case(15, [](Dice& dice, Index index) {
    const int ranks = static_cast<int>(index % 5) + 1;
    Case what = random_case(dice, index, ranks);
    if (what.group == 8) what.group = 4;
    switch (index % 3) {
      case 0: return expect_rings_agree<float>(what, ranks);
      case 1: return expect_rings_agree<Bf16>(what, ranks);
      default: return expect_rings_agree<Fp16>(what, ranks);
    }
  });
}

TEST(DeviceRings, AgreeWithBiasDropoutAndSinks) {
  constexpr std::pair<Index, Index> every_broadcast[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}};
  std::size_t i = 0;
  for (const int ranks : {1, 2, 3, 5})
    for (const PlacementKind kind : placement_kinds) {
      Case what{.batch = 2,
                .group = 2,
                .queries = 23,
                .keys = 31,
                .dim = 5,
                .scoring = {0.4, Mask::causal(8)},
                .bias_batch = every_broadcast[i % 4].first,
                .bias_heads = every_broadcast[i % 4].second,
                .kind = kind,
                .every_hop = false};
      what.scoring.dropout = {.probability = 0.3, .seed = 4};
      what.scoring.sinks = {0.5, -1, 0, 2};
      if (i++ % 3 == 0)
        expect_rings_agree<Bf16>(what, ranks);
      else
        expect_rings_agree<float>(what, ranks);
    }
}

TEST(DeviceRings, TravelAsKFollowedByVOfTheirOwner) {
  const Placement placement(PlacementKind::zigzag, 8, 3);
  KvParcel<float, DeviceMemory> kv({1, 2, 8, 4}, placement, 1);
  EXPECT_EQ(kv.elements().size(), static_cast<std::size_t>(2 * 2 * 4 * placement.tokens(1)));
  EXPECT_EQ(kv.v().data(), kv.k().data() + kv.k().size());
}

}  // namespace
}  // namespace ring_attention::test
