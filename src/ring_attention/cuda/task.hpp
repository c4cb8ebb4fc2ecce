/// \file
/// What both engines of the GPU do before they launch a kernel: they turn a mask into intervals and a shard into tasks.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/cuda/device_tensor.hpp"

namespace ring_attention::cuda {

struct QueryTables;

/// The options of an engine of the GPU. The engine uses the device that is current when it begins.
struct CudaOptions {
  StreamHandle stream = nullptr;  ///< all work is enqueued on it; must outlive the engine
  std::string kernel = "auto";    ///< the name of a kernel
  int reserved_sms = 0;           ///< multiprocessors that kernels leave free for communication
  int pieces =
      0;  ///< of keys, after which the forward kernel also computes the result; 0: not known, finish() does it
  const Allocator& allocator = device_allocator();       ///< of the arrays of the engine; outlives them
  std::shared_ptr<const QueryTables>* tables = nullptr;  ///< where tables_for() keeps what it makes
};

/// The traits of the current device without its reserved multiprocessors.
[[nodiscard]] DeviceTraits traits_for(const CudaOptions& options);

/// What kernels read of a mask for one shard of queries.
struct MaskOnDevice {
  MaskOnDevice() = default;
  MaskOnDevice(const Scoring& scoring, const TokenRanges& queries, StreamHandle stream,
               const Allocator& allocator = device_allocator());

  Tensor<Interval> visible;   ///< [parts][queries]: for each part of the mask
  Tensor<Index> position;     ///< [queries]
  Tensor<float> alibi_slope;  ///< [heads], or empty
};

/// The sinks as [1, 1, heads, 1], or empty. \throws Error unless there is one for each head of q, or none
[[nodiscard]] Tensor<float> sinks_on_device(const std::vector<double>& sinks, const Shape& q,
                                            StreamHandle stream,
                                            const Allocator& allocator = device_allocator());

/// What kernels read of a scoring for one shard of queries, in device memory.
struct QueryTables {
  MaskOnDevice mask;
  Tensor<DropoutRow> dropout;  ///< [batch, heads, queries], or empty
  Tensor<float> sinks;         ///< [heads], or empty
};

/// The tables of `options.tables`, if there are some; otherwise new ones, which are stored there.
/// \param q  of the shard, whose tokens are at `queries`
[[nodiscard]] std::shared_ptr<const QueryTables> tables_for(const CudaOptions& options,
                                                            const Scoring& scoring, const Shape& q,
                                                            const TokenRanges& queries);

/// The dense bias, the softcap and the dropout of one shard of queries.
class PairsOnDevice {
 public:
  PairsOnDevice() = default;
  /// \param rows  of the dropout (QueryTables); stay with the caller
  /// \param bias  of these queries, in device memory, or empty
  PairsOnDevice(const Scoring& scoring, View<const DropoutRow> rows, View<const float> bias);

  [[nodiscard]] bool any() const { return terms_.any(); }

  /// Launches the kernel, with these terms if there are any. \param grad_bias  dBias, of a backward
  template <class Task>
  void launch(const Kernel<Task>& kernel, const Task& task, Type type, const DeviceTraits& device,
              StreamHandle stream, float* grad_bias = nullptr) const {
    PairTerms terms = terms_;
    terms.grad_bias = grad_bias;
    if (any())
      kernel.launch_with_pairs({task, terms}, type, device, stream);
    else
      kernel.launch(task, type, device, stream);
  }

 private:
  PairTerms terms_{};
};

/// Kernels count tokens in an int, and the end of a tile may be this far behind the last token.
constexpr Index longest_tile = 1024;

/// A length as an int, as kernels use it. \throws Error with its name if it is too large
[[nodiscard]] int kernel_int(Index length, const char* name);

/// The part of a task that does not depend on the keys. \throws Error if a length is too large for an int
[[nodiscard]] AttentionTask task_of(const Shape& q, const void* data, const Scoring& scoring,
                                    const MaskOnDevice& mask);

/// True if no keys of the shard follow those of this launch.
[[nodiscard]] inline bool ends_shard(const AttentionTask& task) {
  const KeyRange& range = task.range[task.ranges - 1];
  return range.first + range.tokens.count == task.keys;
}

/// Calls use(task, part) for the ranges of a shard, `max_ranges` at a time, and that for each of the `parts` of a mask. Makes
/// no call for a shard without keys. \param task  sees part 0 \throws Error if there are too many keys for an int
template <class Task>
void for_each_launch(Task task, int parts, const Shape& keys, const void* k, const void* v,
                     const TokenRanges& ranges, const std::function<void(const Task&, int)>& use) {
  task.kv_heads = kernel_int(keys.heads, "KV heads");
  task.keys = kernel_int(keys.seq, "keys of one rank");
  task.k = k;
  task.v = v;
  for (int part = 0; part < parts; ++part, task.visible += task.queries) {
    task.ranges = 0;
    Index first = 0;
    for (const TokenRange& range : ranges) {
      if (range.count > 0) task.range[task.ranges++] = {range, first};
      first += range.count;
      if (task.ranges < max_ranges) continue;
      use(task, part);
      task.ranges = 0;
    }
    if (task.ranges > 0) use(task, part);
  }
}

}  // namespace ring_attention::cuda
