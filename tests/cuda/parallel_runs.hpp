// Ulysses with a ring, and all-gather, with arrays in the memory of GPUs: forward, then backward.
#pragma once

#include "cuda/cuda_runs.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#include "support/parallel_runs.hpp"

namespace ring_attention::test {

using cuda::DeviceMemory;

/// The rows of a rank, in the type of the kernels.
template <class T>
cuda::DeviceTensor<T> rows_on_gpu(const Tensor<float>& all, const TokenRanges& rows, StreamHandle stream) {
  return cuda::uploaded<T>(rows_of(all, rows), stream);
}

/// One rank's part. \param make_transport  makes this rank's transport of the ring for a channel
template <class T, class Link, class MakeTransport>
ParallelResult<float> run_rank_hybrid_on_gpu(const GradientProblem<float>& problem, const HybridPlace& place,
                                             Link& link, MakeTransport make_transport, StreamHandle stream) {
  const Problem<float>& p = problem.forward;
  const Case& what = p.what;
  const DeviceMemory memory{stream};
  const int ring_rank = place.ring.index(place.rank);
  const Placement queries(what.kind, what.queries, place.ring.size),
      keys(what.kind, what.keys, place.ring.size);
  const HeadLayout layout(link, place, queries, keys, what.q().heads, what.kv_heads, memory);
  const auto queries_to_heads = [&](const Tensor<float>& all) {
    return layout.template queries_to_heads<T>(rows_on_gpu<T>(all, place.slice(queries), stream));
  };
  const auto keys_to_heads = [&](const Tensor<float>& all) {
    return layout.template keys_to_heads<T>(rows_on_gpu<T>(all, place.slice(keys), stream));
  };
  const auto to_sequence = [&](View<const float> y) {
    return cuda::downloaded(layout.template queries_to_sequence<float>(y), stream);
  };
  const auto keys_to_sequence = [&](View<const float> y) {
    return cuda::downloaded(layout.template keys_to_sequence<float>(y), stream);
  };
  ParallelResult<float> result;

  const auto q = queries_to_heads(p.q), grad_out = queries_to_heads(problem.grad_out);
  const auto k = keys_to_heads(p.k), v = keys_to_heads(p.v);
  const auto parcel = [&] {
    KvParcel<T, DeviceMemory> kv(k.shape(), keys, ring_rank, memory);
    memory.copy(kv.k().elements(), k.view().elements());
    memory.copy(kv.v().elements(), v.view().elements());
    return kv;
  };
  KvParcel<T, DeviceMemory> kv = parcel();
  CudaEngine<T> engine(layout.scoring(what.scoring), {.stream = stream});
  engine.begin(q, place.shard(queries));
  {
    auto&& transport = make_transport(0);
    ring_forward(engine, transport, kv);
    result.forward_kv = transport.statistics();
  }
  const DeviceAttentionResult attended = engine.finish();
  result.attended = {to_sequence(attended.out), to_sequence(attended.lse)};
  result.forward_pieces = link.statistics();

  KvParcel<T, DeviceMemory> again = parcel();
  KvParcel<float, DeviceMemory> gradients(k.shape(), keys, ring_rank, memory);
  CudaBackward<T> backward(layout.scoring(what.scoring), {.stream = stream});
  backward.begin({q, attended.out, attended.lse, grad_out}, place.shard(queries));
  {
    auto&& kv_transport = make_transport(0);
    auto&& gradient_transport = make_transport(1);
    ring_backward(backward, kv_transport, gradient_transport, again, gradients);
    result.kv = kv_transport.statistics();
    result.gradient = gradient_transport.statistics();
  }
  result.gradients = {to_sequence(backward.finish()), keys_to_sequence(gradients.k()),
                      keys_to_sequence(gradients.v())};
  result.pieces = link.statistics();
  return result;
}

/// One rank's part of the all-gather.
template <class T, class Link>
ParallelResult<float> run_rank_all_gather_on_gpu(const GradientProblem<float>& problem, Link& link,
                                                 StreamHandle stream) {
  const Problem<float>& p = problem.forward;
  const DeviceMemory memory{stream};
  const Ring ring{link.rank(), link.size()};
  const TokenRanges rows = query_ranges(p, ring.rank, ring.size);
  const Placement keys(p.what.kind, p.what.keys, ring.size);
  const auto q = rows_on_gpu<T>(p.q, rows, stream), grad_out = rows_on_gpu<T>(problem.grad_out, rows, stream);
  KvShards<T, DeviceMemory> kv(p.k.shape(), keys, memory);
  KvShards<float, DeviceMemory> gradients(p.k.shape(), keys, memory);
  cuda::upload<T>(kv.k(ring.rank), rows_of(p.k, keys.ranges(ring.rank)), stream);
  cuda::upload<T>(kv.v(ring.rank), rows_of(p.v, keys.ranges(ring.rank)), stream);
  all_gather(link, kv);
  ParallelResult<float> result;
  result.forward_pieces = link.statistics();

  CudaEngine<T> engine(p.what.scoring, {.stream = stream});
  engine.begin(q, rows);
  all_gather_forward(engine, ring, kv);
  const DeviceAttentionResult attended = engine.finish();
  result.attended = downloaded(attended, stream);

  CudaBackward<T> backward(p.what.scoring, {.stream = stream});
  backward.begin({q, attended.out, attended.lse, grad_out}, rows);
  all_gather_backward(backward, link, kv, gradients);
  result.gradients = {cuda::downloaded(backward.finish(), stream),
                      cuda::downloaded<float>(gradients.k(ring.rank), stream),
                      cuda::downloaded<float>(gradients.v(ring.rank), stream)};
  result.pieces = link.statistics();
  return result;
}

/// An all-to-all that reads and writes device memory, after the work on a stream: for threads that share a GPU.
class SynchronizedAllToAll {
 public:
  SynchronizedAllToAll(StreamHandle stream, LoopbackWorld& world, int rank, const Axis& axis)
      : stream_(stream), link_(world, rank, axis) {}

  [[nodiscard]] int rank() const { return link_.rank(); }
  [[nodiscard]] int size() const { return link_.size(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }
  void exchange(const Pieces& pieces) {
    cuda::check(cudaStreamSynchronize(stream_));
    link_.exchange(pieces);
  }

 private:
  StreamHandle stream_;
  LoopbackAllToAll link_;
};

/// All ranks in this process.
template <class T>
std::vector<ParallelResult<float>> run_loopback_hybrid_on_gpu(const GradientProblem<float>& problem,
                                                              int ulysses, int rings) {
  std::vector<ParallelResult<float>> results(static_cast<std::size_t>(ulysses * rings));
  LoopbackWorld world(ulysses * rings, {}, std::chrono::seconds(60), copy_between_devices);
  world.run([&](int rank) {
    const cuda::Stream stream;
    const HybridPlace place(rank, world.ranks(), ulysses);
    SynchronizedAllToAll link(stream.handle(), world, rank, place.ulysses);
    const auto make_transport = [&](int channel) {
      return SynchronizedTransport<LoopbackTransport>(stream.handle(), world, rank, channel, place.ring);
    };
    results[static_cast<std::size_t>(rank)] =
        run_rank_hybrid_on_gpu<T>(problem, place, link, make_transport, stream.handle());
  });
  return results;
}
template <class T>
std::vector<ParallelResult<float>> run_loopback_all_gather_on_gpu(const GradientProblem<float>& problem,
                                                                  int ranks) {
  std::vector<ParallelResult<float>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(60), copy_between_devices);
  world.run([&](int rank) {
    const cuda::Stream stream;
    SynchronizedAllToAll link(stream.handle(), world, rank, {1, ranks});
    results[static_cast<std::size_t>(rank)] = run_rank_all_gather_on_gpu<T>(problem, link, stream.handle());
  });
  return results;
}

}  // namespace ring_attention::test
