/// \file
/// `kernel()`: a function of the caller's computes in place of the library's kernels.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/attention/function_engine.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/processor.hpp"

namespace ring_attention {

/// A function as a device. Forward only, without a dense bias.
template <class T>
class FunctionDevice : public CpuDevice<T> {
 public:
  explicit FunctionDevice(AttentionFunction<T> function) : function_(std::move(function)) {}

  [[nodiscard]] std::string name() const override { return "a function of the caller"; }
  void check(const SharedAttention& shared, bool backward) const override {
    if (!function_) throw InputError("kernel: the function is empty");
    if (backward) throw InputError("kernel: a function computes the forward only");
    if (shared.bias) throw InputError("kernel: a function gets no bias");
  }
  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T>,
                                                   const ExpectedKeys& keys) const override {
    auto engine = std::make_unique<FunctionEngine<T>>(scoring, function_);
    engine->begin(q, ranges, keys.largest.value_dim);
    return engine;
  }

 private:
  AttentionFunction<T> function_;
};

/// Any function that returns out and lse for some queries and keys can run in the ring (attention/function_engine.hpp):
///
///     const ra::Attention mine{ra::mpi(comm), ra::kernel<float>(function)};
///
/// On each rank the calling thread calls it once for the K,V of each rank that its queries see. An exception that it throws
/// on one rank passes through, and the caller must end the job. Memory: what the function needs, and its result twice.
/// \ingroup public_api
template <class T>
[[nodiscard]] Processor kernel(AttentionFunction<T> function) {
  Processor processor;
  if constexpr (std::is_same_v<T, float>)
    processor.floats = std::make_shared<FunctionDevice<T>>(std::move(function));
  else
    processor.doubles = std::make_shared<FunctionDevice<T>>(std::move(function));
  return processor;
}

}  // namespace ring_attention
