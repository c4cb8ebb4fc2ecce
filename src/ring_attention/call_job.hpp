/// \file
/// The forward and the backward of a call of ring_attention.hpp over the ranks that K,V travel to. A part of
/// ring_attention.cpp.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>

#include "ring_attention/call_arguments.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/parallel/all_gather.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

/// Calls run(the type of the transport). A failure can leave messages under way, and MPI cannot take a send back: the
/// parcels, which MPI may still read and fill, then live as long as the process.
void with_transport(TransportKind kind, std::initializer_list<std::shared_ptr<void>> parcels, auto run) {
  try {
    if (kind == TransportKind::overlapped)
      run(std::type_identity<OverlappedTransport>{});
    else
      run(std::type_identity<OddEvenTransport>{});
  } catch (...) {
    static std::mutex mutex;
    static std::vector<std::shared_ptr<void>> kept;
    const std::lock_guard lock(mutex);
    kept.insert(kept.end(), parcels);
    throw;
  }
}

/// K,V of a rank where messages can take them: a parcel for a ring, or, for an all-gather, the shards of all ranks.
template <class T>
struct TravellingKv {
  std::shared_ptr<KvParcel<T>> parcel;
  std::optional<KvShards<T>> shards;

  TravellingKv(const Call<T>& call, int rank) {
    const auto& [queries, keys] = call.placement;
    const Shape& kv = call.k.shape();
    if (call.options.partition == Partition::all_gather) {
      shards.emplace(kv, keys);
      copy_own(call, shards->k(rank), shards->v(rank));
    } else {
      parcel = std::make_shared<KvParcel<T>>(kv, keys, rank, HostMemory{},
                                             kv_hops(call.scoring.mask, queries, keys));
      copy_own(call, parcel->k(), parcel->v());
    }
  }

 private:
  static void copy_own(const Call<T>& call, View<T> k, View<T> v) {
    std::ranges::copy(call.k.elements(), k.data());
    std::ranges::copy(call.v.elements(), v.data());
  }
};

/// A forward. Its constructor allocates all that it needs, and sends nothing.
template <class Compute>
class ForwardJob {
  using T = typename Compute::value_type;

 public:
  /// \param rank    among the ranks of the placement
  /// \param engine  that has begun with the queries of this rank
  ForwardJob(const Call<T>& call, int rank, Compute engine)
      : transport_(call.options.transport), kv_(call, rank), engine_(std::move(engine)) {}

  /// \param line  the ranks of the placement
  AttentionResult<T> run(const Communicator& line) {
    if (kv_.shards) {
      MpiAllToAll link(line);
      all_gather(link, *kv_.shards);
      all_gather_forward(engine_, Ring{line.rank(), line.size()}, *kv_.shards);
    } else {
      with_transport(transport_, {kv_.parcel}, [&]<class Link>(std::type_identity<Link>) {
        Link transport(line);
        ring_forward(engine_, transport, *kv_.parcel);
      });
    }
    return engine_.finish();
  }

 private:
  TransportKind transport_;
  TravellingKv<T> kv_;
  Compute engine_;
};

/// A backward. Its constructor allocates all that it needs, and sends nothing.
template <class T>
class BackwardJob {
 public:
  /// \param forward  stays with the caller
  BackwardJob(const Call<T>& call, const ForwardResult<T>& forward, int rank)
      : transport_(call.options.transport),
        forward_(forward),
        sinks_(call.scoring.sinks),
        kv_(call, rank),
        engine_(call.scoring, CpuOptions{call.options.threads, call.options.isa}) {
    if (kv_.shards)
      all_sums_.emplace(call.k.shape(), call.placement.keys);
    else
      sums_ = std::make_shared<KvParcel<T>>(call.k.shape(), call.placement.keys, rank);
    engine_.begin(forward, call.placement.queries.ranges(rank));
    if (sums_)
      (void)sums_->spare_buffer();  // the ring takes one, too: a rank without memory for it is found here
  }

  /// \returns dK and dV of this rank's shard; of the sinks what the queries of this rank contribute
  Gradients<T> run(const Communicator& line) {
    if (kv_.shards) {
      MpiAllToAll link(line);
      all_gather(link, *kv_.shards);
      all_gather_backward(engine_, link, *kv_.shards, *all_sums_);
      kv_.shards.reset();
      return gradients(all_sums_->k(line.rank()), all_sums_->v(line.rank()));
    }
    with_transport(transport_, {kv_.parcel, sums_}, [&]<class Link>(std::type_identity<Link>) {
      Link kv_transport(line, 0), gradient_transport(line, 1);
      ring_backward(engine_, kv_transport, gradient_transport, *kv_.parcel, *sums_);
    });
    kv_.parcel.reset();
    return gradients(sums_->k(), sums_->v());
  }

 private:
  Gradients<T> gradients(View<const T> k, View<const T> v) {
    return {engine_.finish(), converted<T>(k), converted<T>(v), engine_.bias_gradient(),
            sink_gradient(forward_, sinks_)};
  }

  TransportKind transport_;
  ForwardResult<T> forward_;
  std::vector<double> sinks_;
  TravellingKv<T> kv_;
  CpuBackward<T> engine_;
  std::shared_ptr<KvParcel<T>> sums_;    // of a ring
  std::optional<KvShards<T>> all_sums_;  // of an all-gather
};

}  // namespace ring_attention
