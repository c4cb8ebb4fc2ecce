/// \file
/// The forward and the backward of a call of ring_attention.hpp over the ranks that K,V travel to. A part of
/// ring_attention.cpp.
#pragma once

#include <memory>
#include <mutex>
#include <type_traits>

#include "ring_attention/call_arguments.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"
#include "ring_attention/parallel/travelling_kv.hpp"
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

/// A transport that calls the caller's progress, too.
template <class Link>
class Reporting : public Link {
 public:
  Reporting(const Communicator& line, int channel, const Progress& report)
      : Link(line, channel), report_(report) {}

  void progress() {
    Link::progress();
    if (report_) report_();
  }
  void finish() {
    Link::finish();
    if (report_) report_();
  }

 private:
  const Progress& report_;
};

/// The K,V of a call, where messages can take them.
template <class T>
TravellingKv<T> travelling_kv(const Call<T>& call, int rank) {
  const auto& [queries, keys] = call.placement;
  TravellingKv<T> kv(call.options.partition == Partition::all_gather, call.k.shape(), keys, rank,
                     HostMemory{}, kv_hops(call.scoring.mask, queries, keys));
  std::ranges::copy(call.k.elements(), kv.k().data());
  std::ranges::copy(call.v.elements(), kv.v().data());
  return kv;
}

/// A forward. Its constructor allocates all that it needs, and sends nothing.
template <class Compute>
class ForwardJob {
  using T = typename Compute::value_type;

 public:
  /// \param rank    among the ranks of the placement
  /// \param engine  that has begun with the queries of this rank
  ForwardJob(const Call<T>& call, int rank, Compute engine)
      : options_(call.options), kv_(travelling_kv(call, rank)), engine_(std::move(engine)) {}

  /// \param line  the ranks of the placement
  AttentionResult<T> run(const Communicator& line) {
    with_transport(options_.transport, {kv_.parcel}, [&]<class Link>(std::type_identity<Link>) {
      MpiAllToAll link(line);
      travelling_forward(
          engine_, link, [&](int channel) { return Reporting<Link>(line, channel, options_.progress); }, kv_,
          options_.progress);
    });
    return engine_.finish();
  }

 private:
  Options options_;
  TravellingKv<T> kv_;
  Compute engine_;
};

/// A backward. Its constructor allocates all that it needs, and sends nothing.
template <class T>
class BackwardJob {
 public:
  /// \param forward  stays with the caller
  BackwardJob(const Call<T>& call, const ForwardResult<T>& forward, int rank)
      : options_(call.options),
        forward_(forward),
        sinks_(call.scoring.sinks),
        kv_(travelling_kv(call, rank)),
        sums_(kv_.shards.has_value(), call.k.shape(), call.placement.keys, rank),
        engine_(call.scoring, CpuOptions{call.options.threads, call.options.isa}) {
    engine_.begin(forward, call.placement.queries.ranges(rank));
    if (sums_.parcel)
      (void)sums_.parcel
          ->spare_buffer();  // the ring takes one, too: a rank without memory for it is found here
  }

  /// \returns dK and dV of this rank's shard; of the sinks what the queries of this rank contribute
  Gradients<T> run(const Communicator& line) {
    with_transport(options_.transport, {kv_.parcel, sums_.parcel}, [&]<class Link>(std::type_identity<Link>) {
      MpiAllToAll link(line);
      travelling_backward(
          engine_, link, [&](int channel) { return Reporting<Link>(line, channel, options_.progress); }, kv_,
          sums_, options_.progress);
    });
    kv_.parcel.reset();
    kv_.shards.reset();
    return {engine_.finish(), converted<T>(sums_.k()), converted<T>(sums_.v()), engine_.bias_gradient(),
            sink_gradient(forward_, sinks_)};
  }

 private:
  Options options_;
  ForwardResult<T> forward_;
  std::vector<double> sinks_;
  TravellingKv<T> kv_, sums_;
  CpuBackward<T> engine_;
};

}  // namespace ring_attention
