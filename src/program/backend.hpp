/// \file
/// `Backend`: what `run` and `bench` ask of the device that computes.
#pragma once

#include <concepts>
#include <string>

#include "cli/device_options.hpp"
#include "program/watched.hpp"
#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// What each rank computes.
struct Workload {
  Shape q, kv;  ///< of the largest shard of any rank, `[batch, heads, tokens, dim]`
  Scoring scoring;
  bool gradients = false;
  Shape bias = {};        ///< of the dense bias of that shard; of size 0: none
  Index check_bytes = 0;  ///< of the host, that --check takes for dbias
  Index besides = 0;      ///< numbers that the device has besides those of a ring: of other partitions

  /// Numbers of the bias and of its gradient.
  [[nodiscard]] Index bias_values() const { return (gradients ? 2 : 1) * bias.size(); }
};

/// What a backend is made of. Everything outlives the backend.
struct BackendContext {
  const Communicator& comm;  ///< all ranks
  const Communicator& ring;  ///< those that K,V travel to
  const DeviceOptions& options;
  Activity& activity;
  Workload workload;
};

/// A backend in the words of a report.
struct BackendDescription {
  std::string device = "cpu";
  std::string engine;                    ///< fast, readable or cuda
  std::string isa;                       ///< instruction set of the fast engine, or kernels of the GPU
  std::string wire;                      ///< type of K,V in messages
  std::string transport = "overlapped";  ///< the one that is used
  std::string warning;                   ///< empty: none
  Index threads = 1;                     ///< of this rank
};

/// What computes: `fast, avx2, 2 threads per rank`.
[[nodiscard]] inline std::string words_of(const BackendDescription& backend, Index threads) {
  return backend.engine + (backend.isa.empty() ? "" : ", " + backend.isa) +
         (backend.device == "cpu" ? ", " + counted(threads, "thread") + " per rank" : "");
}

/// Arrays of the host have the type Value. Where the device computes they are in Memory: q, k, v and dO as Input, and
/// results as Value. K,V travel as Element, and dK,dV as Value.
///
/// Forward: set_queries(), forward_engine(), ring_forward() with ring_engine(), the engine's finish(). Backward: the same
/// queries, backward_engine(), ring_backward() with ring_engine(), finish(). Every call is collective.
template <class T>
concept Backend =
    requires(T& backend, const Tensor<typename T::Value>& array, const TokenRanges& ranges,
             View<const typename T::Value> computed,
             const typename T::Memory::template Array<typename T::Input>& there, const Communicator& line,
             View<typename T::Element> shard, void (*write)(View<typename T::Value>),
             decltype(backend.forward_engine())& forward, decltype(forward.finish())& result,
             decltype(backend.backward_engine(result, there))& backward) {
      /// \throws AgreedError when one rank cannot have the memory for its shards.
      backend.require_memory();
      { backend.description() } -> std::same_as<BackendDescription>;
      /// Relative rounding error of the input before the arithmetic.
      { backend.input_roundoff() } -> std::convertible_to<double>;
      { backend.memory() } -> std::same_as<typename T::Memory>;
      { backend.transport(Watched::kv) } -> std::same_as<Watched>;
      /// Moves arrays in Memory between the ranks of a line. Not more than one line besides that of the ring.
      { backend.all_to_all(line) } -> std::same_as<WatchedAllToAll>;
      /// Fills a part of a parcel with what the function writes into an array of the host, or with an array.
      backend.fill(shard, write);
      backend.fill(shard, there);
      /// The array where the device computes: a copy, or the array itself, which stays with the caller.
      { backend.there(array) } -> std::convertible_to<View<const typename T::Input>>;
      /// And back. Waits until it has been computed.
      { backend.here(computed) } -> std::same_as<Tensor<typename T::Value>>;
      /// The queries at `ranges`, and their bias (of the host) or an empty view. The arrays stay with the caller.
      backend.set_queries(there, ranges, array);
      /// The engine as a ring uses it: it takes K,V as Element.
      backend.ring_engine(forward);
      backend.ring_engine(backward);
      /// Waits until the device has computed everything.
      backend.synchronize();
    };

}  // namespace ring_attention
