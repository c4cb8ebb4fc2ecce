/// \file
/// What both engines of the GPU do before a kernel: masks as intervals, shards as tasks.
#pragma once

#include <functional>

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/cuda/device_tensor.hpp"

namespace ring_attention::cuda {

/// How an engine of the GPU computes. It belongs to the device that is current when it begins.
struct CudaOptions {
  StreamHandle stream = nullptr;   ///< everything is enqueued here; must outlive the engine
  std::string kernel = "auto";     ///< a name of the ladder
  int spared_multiprocessors = 0;  ///< left to communication
};

/// Traits of the current device, less what is reserved_sms.
[[nodiscard]] DeviceTraits traits_for(const CudaOptions& options);

/// What kernels read of a mask, for one shard of queries: copied to the device once.
class MaskOnDevice {
 public:
  MaskOnDevice() = default;
  MaskOnDevice(const Scoring& scoring, const TokenRanges& queries, StreamHandle stream);

  void fill_in(AttentionTask& task) const;

 private:
  DeviceTensor<Interval> visible_;   // [queries]
  DeviceTensor<Index> position_;     // [queries]
  DeviceTensor<float> alibi_slope_;  // [heads], or nothing
};

/// Kernels count tokens in an int, and the end of a tile may lie so far behind the last one.
constexpr Index longest_tile = 1024;

/// An extent as a kernel's int. \throws Error, which names it, when it is too large for that
[[nodiscard]] int extent_of(Index extent, const char* name);

/// The part of a task that does not depend on the keys. \throws Error when an extent is too large for a kernel's int
[[nodiscard]] AttentionTask task_of(const Shape& q, const void* data, const Scoring& scoring,
                                    const MaskOnDevice& mask);

/// Calls use(task) for the ranges of a shard, `max_runs` at a time. No call for a shard without keys. \throws Error when
/// there are too many keys for a kernel's int
template <class Task>
void for_each_launch(Task task, const Shape& keys, const void* k, const void* v, const TokenRanges& ranges,
                     const std::function<void(const Task&)>& use) {
  task.kv_heads = extent_of(keys.heads, "KV heads");
  task.keys = extent_of(keys.seq, "keys of one rank");
  task.k = k;
  task.v = v;
  task.ranges = 0;
  Index first = 0;
  for (const TokenRange& range : ranges) {
    if (range.count > 0) task.range[task.ranges++] = {range, first};
    first += range.count;
    if (task.ranges < max_ranges) continue;
    use(task);
    task.ranges = 0;
  }
  if (task.ranges > 0) use(task);
}

}  // namespace ring_attention::cuda
