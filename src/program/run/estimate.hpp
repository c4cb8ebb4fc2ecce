/// \file
/// How long a run will take, before it begins.
#pragma once

#include <chrono>

#include "plan/ring_step.hpp"
#include "plan/ring_time.hpp"
#include "program/run/context.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {

/// A run of fewer FLOP a rank is not worth an estimate: about two seconds of a core.
inline constexpr double shortest_estimated = 2e11;

/// FLOP of this rank's forward: two products for each visible pair of a query and a key, and each head. One has the columns
/// of k, the other those of v.
[[nodiscard]] inline double forward_flops(const RunContext& run) {
  const TokenRanges queries = run.grid().shard(run.shared.tokens.queries);
  const double pairs =
      static_cast<double>(visible_pairs(run.shared.scoring.mask, queries, whole(run.shared.kv.seq)));
  const Shape& q = run.shared.q;
  return 2 * pairs * static_cast<double>(q.batch * q.heads * (q.dim + run.shared.kv.value_dim)) /
         run.grid().ulysses.size;
}

/// FLOP/s of this rank in a small forward without a mask, which takes about a fifth of a second, while all ranks compute.
/// Collective.
template <class Input, class T>
[[nodiscard]] double measured_rate(const RunContext& run, const Device<Input, T>& device, Index threads) {
  constexpr Index keys = 2048;
  constexpr std::chrono::duration<double> enough(0.2);
  const KvShape shape({1, 1, keys, run.shared.q.dim}, run.shared.kv.value_dim);
  const Tensor<Input> q(Shape{1, 1, keys * threads, shape.dim});
  const Tensor<T> k(shape), v(shape.values());
  const auto engine = device.forward({run.shared.scoring.scale, {}}, q, whole(q.shape().seq),
                                     View<const SumOf<Input>>{}, {shape, 0});
  engine->accumulate({k, v, whole(keys)});  // warm
  barrier(run.comm);
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> seconds{0};
  double flops = 0;
  for (; seconds < enough; seconds = std::chrono::steady_clock::now() - begin) {
    engine->accumulate({k, v, whole(keys)});
    flops += 2.0 * static_cast<double>(q.shape().seq * keys * (shape.dim + shape.value_dim));
  }
  return flops / seconds.count();
}

/// Seconds that forward and backward of the slowest rank should take, messages hidden; 0 for a short run, and for a device
/// with memory of its own, and with a trace, which would have the small part. Collective.
template <class Input, class T>
[[nodiscard]] double expected_seconds(const RunContext& run, const Device<Input, T>& device, Index threads) {
  if (&device.memory() != &host_memory() || run.trace != nullptr) return 0;
  const double flops = forward_flops(run);
  if (max_over_ranks(run.comm, flops) < shortest_estimated) return 0;
  const double forward = max_over_ranks(run.comm, flops / measured_rate(run, device, threads));
  return forward * (run.options.wants_gradients() ? 1 + plan::backward_flops : 1);
}

}  // namespace ring_attention
