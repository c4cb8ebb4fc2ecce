#include "ring_attention/cuda/task.hpp"

#include <limits>
#include <string>

#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::cuda {
namespace {

/// `values` are read when this returns: CUDA stages a copy from pageable memory.
template <class T>
Tensor<T> on_device(const std::vector<T>& values, StreamHandle stream, const Allocator& allocator) {
  Tensor<T> array({1, 1, static_cast<Index>(values.size()), 1}, allocator);
  copy<T>(array.view().elements(), values, stream);
  return array;
}

Tensor<DropoutRow> dropout_on_device(const Dropout& dropout, const Shape& q, const TokenRanges& queries,
                                     const CudaOptions& options) {
  if (!dropout.drops()) return {};
  std::vector<DropoutRow> rows;
  const std::vector<Index> all = positions(queries);
  for (Index batch = 0; batch < q.batch; ++batch)
    for (Index head = 0; head < q.heads; ++head)
      for (const Index query : all) rows.push_back(dropout.row(batch, head, query));
  return on_device(rows, options.stream, options.allocator);
}

}  // namespace

DeviceTraits traits_for(const CudaOptions& options) {
  DeviceTraits traits = traits_of(current_device());
  require(options.reserved_sms < traits.multiprocessors, "CudaOptions: all multiprocessors are reserved");
  traits.multiprocessors -= options.reserved_sms;
  return traits;
}

MaskOnDevice::MaskOnDevice(const Scoring& scoring, const TokenRanges& queries, StreamHandle stream,
                           const Allocator& allocator) {
  std::vector<Index> positions_of_keys = positions(queries);
  std::vector<Interval> intervals;
  for (int part = 0; part < scoring.mask.parts(); ++part)
    for (const Index query : positions_of_keys) intervals.push_back(scoring.mask.visible(query, part));
  for (Index& query : positions_of_keys) query += scoring.mask.offset;
  const std::vector<float> slopes(scoring.alibi_slopes.begin(), scoring.alibi_slopes.end());
  visible = on_device(intervals, stream, allocator);
  position = on_device(positions_of_keys, stream, allocator);
  alibi_slope = on_device(slopes, stream, allocator);
}

std::shared_ptr<const QueryTables> tables_for(const CudaOptions& options, const Scoring& scoring,
                                              const Shape& q, const TokenRanges& queries) {
  if (options.tables != nullptr && *options.tables) return *options.tables;
  auto tables = std::make_shared<const QueryTables>(
      QueryTables{MaskOnDevice(scoring, queries, options.stream, options.allocator),
                  dropout_on_device(scoring.dropout, q, queries, options),
                  sinks_on_device(scoring.sinks, q, options.stream, options.allocator)});
  if (options.tables != nullptr) *options.tables = tables;
  return tables;
}

PairsOnDevice::PairsOnDevice(const Scoring& scoring, View<const DropoutRow> rows, View<const float> bias) {
  if (bias.size() > 0) {
    terms_.bias_batches = static_cast<int>(bias.shape().batch);
    terms_.bias_heads = static_cast<int>(bias.shape().heads);
    terms_.positions = bias.shape().dim;
    terms_.bias = bias.data();
  }
  terms_.softcap = static_cast<float>(scoring.softcap);
  const Dropout& dropout = scoring.dropout;
  if (!dropout.drops()) return;
  terms_.dropout = rows.data();
  terms_.threshold = static_cast<std::uint32_t>(dropout.threshold());
  terms_.kept = static_cast<float>(dropout.scale());
}

Tensor<float> sinks_on_device(const std::vector<double>& sinks, const Shape& q, StreamHandle stream,
                              const Allocator& allocator) {
  require(sinks.empty() || std::ssize(sinks) == q.heads,
          std::to_string(sinks.size()) + " sinks for " + std::to_string(q.heads) + " heads");
  return on_device(std::vector<float>(sinks.begin(), sinks.end()), stream, allocator);
}

int kernel_int(Index length, const char* name) {
  constexpr Index most = std::numeric_limits<int>::max() - longest_tile;
  require(length <= most, "CUDA: " + std::to_string(length) + " " + name + ": a kernel counts only to " +
                              std::to_string(most));
  return static_cast<int>(length);
}

AttentionTask task_of(const Shape& q, const void* data, const Scoring& scoring, const MaskOnDevice& mask) {
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
