#include "ring_attention/cuda/task.hpp"

#include <limits>
#include <string>

#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::cuda {
namespace {

template <class T>
DeviceTensor<T> on_device(const std::vector<T>& values, StreamHandle stream) {
  DeviceTensor<T> array({1, 1, static_cast<Index>(values.size()), 1});
  copy<T>(array.view().elements(), values, stream);
  return array;
}

}  // namespace

DeviceTraits traits_for(const CudaOptions& options) {
  DeviceTraits traits = traits_of(current_device());
  require(options.reserved_sms < traits.multiprocessors, "CudaOptions: all multiprocessors are reserved");
  traits.multiprocessors -= options.reserved_sms;
  return traits;
}

MaskOnDevice::MaskOnDevice(const Scoring& scoring, const TokenRanges& queries, StreamHandle stream) {
  std::vector<Index> positions_of_keys = positions(queries);
  std::vector<Interval> intervals;
  for (Index& query : positions_of_keys) {
    intervals.push_back(scoring.mask.visible(query));
    query += scoring.mask.offset;
  }
  const std::vector<float> slopes(scoring.alibi_slopes.begin(), scoring.alibi_slopes.end());
  visible = on_device(intervals, stream);
  position = on_device(positions_of_keys, stream);
  alibi_slope = on_device(slopes, stream);
  check(cudaStreamSynchronize(stream));  // before the vectors are destroyed
}

int kernel_int(Index length, const char* name) {
  constexpr Index most = std::numeric_limits<int>::max() - longest_tile;
  require(length <= most,
          "CUDA: " + std::to_string(length) + " " + name + ": a kernel counts to " + std::to_string(most));
  return static_cast<int>(length);
}

AttentionTask task_of(const Shape& q, const void* data, const Scoring& scoring, const MaskOnDevice& mask) {
  require(scoring.sinks.empty() && !scoring.dropout.drops(),
          "CUDA: the kernels have no sinks and no dropout");
  AttentionTask task{};
  (void)kernel_int(q.batch * q.heads, "query heads of the batch");
  task.batch = kernel_int(q.batch, "sequences of the batch");
  task.heads = kernel_int(q.heads, "query heads");
  task.dim = kernel_int(q.dim, "columns of a head");
  task.queries = kernel_int(q.seq, "queries of one rank");
  task.scale = static_cast<float>(scoring.scale);
  task.q = data;
  task.visible = mask.visible.data();
  task.position = mask.position.data();
  task.alibi_slope = mask.alibi_slope.data();
  return task;
}

}  // namespace ring_attention::cuda
