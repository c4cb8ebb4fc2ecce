/// \file
/// `Backend`: the device and the links of a rank, as the flags of a command ask for them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/device_options.hpp"
#include "cli/table.hpp"
#include "program/trace/traced.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/parallel/context_memory.hpp"

namespace ring_attention {

/// What each rank computes.
struct Workload {
  SharedAttention shared;
  bool gradients = false;
  Index bias = 0;            ///< numbers of the bias of the largest shard
  Index check_bytes = 0;     ///< of the host, that --check takes for its gradient
  Index extra_elements = 0;  ///< numbers in the type of q that the command has besides

  /// Numbers of the bias and of its gradient.
  [[nodiscard]] Index bias_values() const { return (gradients ? 2 : 1) * bias; }
  /// ` (1 KiB of it for the bias)`, or nothing. \param bytes  of the bias
  [[nodiscard]] std::string of_which(Index bytes) const {
    return bytes > 0 ? " (" + human_bytes(bytes) + " of it for the bias)" : "";
  }
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
  Index same_bits = 0;                   ///< tokens of a tile (CpuOptions::same_bits); 0: none
};

/// `, the same bits on any number of ranks (tile: 256 tokens)`, or nothing. \param tile  CpuOptions::same_bits
[[nodiscard]] inline std::string describe_same_bits(Index tile) {
  return tile > 0 ? ", the same bits on any number of ranks (tile: " + counted(tile, "token") + ")" : "";
}

/// What computes: `fast, avx2, 2 threads per rank`.
[[nodiscard]] inline std::string describe(const BackendDescription& backend, Index threads) {
  return backend.engine + (backend.isa.empty() ? "" : ", " + backend.isa) +
         (backend.device == "cpu" ? ", " + counted(threads, "thread") + " per rank" : "") +
         describe_same_bits(backend.same_bits);
}

/// Which rank of a ring holds which tokens, as the flags ask for it.
[[nodiscard]] inline Placements placements_of(const DeviceOptions& options, PlacementKind kind, Index queries,
                                              Index keys, int ranks, const Mask& mask) {
  if (!options.same_bits) return {{kind, queries, ranks}, {kind, keys, ranks}};
  return {{kind, Tiling(options.tile_of_same_bits(), mask.documents, mask.offset).cuts(queries), ranks},
          {kind, Tiling(options.tile_of_same_bits(), mask.documents).cuts(keys), ranks}};
}

/// What computes and sends for one rank of a command. \tparam Input, T  as of a Device
template <class Input, class T = Input>
struct Backend {
  std::shared_ptr<void> stream = {};  ///< of a GPU
  std::unique_ptr<Device<Input, T>> device;
  std::unique_ptr<Links> links;
  std::unique_ptr<CommandObservers> observers;
  BackendDescription description;
  double input_roundoff = 0;  ///< relative rounding error of the input before the arithmetic
  /// \throws AgreedError when one rank cannot have the memory for its shards. Collective.
  std::function<void()> require_memory;
};

/// What a backend is made of. Everything outlives the backend.
struct BackendContext {
  const Communicator& comm;
  const DeviceOptions& options;
  Activity& activity;
  const Workload& work;
  Trace* trace = nullptr;           ///< null: none
  bool describes_attention = true;  ///< in the trace

  [[nodiscard]] std::unique_ptr<CommandObservers> observers() const {
    return std::make_unique<CommandObservers>(activity, trace, std::nullopt, describes_attention);
  }
};

}  // namespace ring_attention
