/// \file
/// The engines of the GPU: begin, accumulate and finish, computed by the kernels in cuda/kernels/.
///
/// They work like the readable BlockwiseEngine, with one difference: views are of device memory, and each call enqueues
/// its work on a stream and returns.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/cuda/choice.hpp"
#include "ring_attention/cuda/task.hpp"

namespace ring_attention {

/// The options of an engine of the GPU.
using cuda::CudaOptions;

/// The result of attention in device memory.
struct DeviceAttentionResult : AttentionResult<float> {
  const char* kernel = "";  ///< the name of the kernel that computed it
};

/// Call begin(q), then accumulate(kv) once per piece of the keys in any number and order, then finish(). T is the type
/// of q, k and v: float, Bf16 or Fp16. The state (o, m, l) is fp32 and carries over from piece to piece.
///
/// Memory: the state, which becomes the result, 24 bytes per query, and with dropout 8 bytes per row.
template <class T>
class CudaEngine final : public Engine<T> {
 public:
  using value_type = T;

  explicit CudaEngine(Scoring scoring, CudaOptions options = {})
      : scoring_(std::move(scoring)), options_(std::move(options)) {}

  /// Starts with an empty state. The caller owns `q` [batch, heads, seq, dim], which must outlive finish(). `ranges`
  /// are the positions of its tokens. The terms of these queries also belong to the caller. \throws InputError if no kernel supports this type and dim on this device, and the bias and
  /// the dropout if there are any
  void begin(View<const T> q, const TokenRanges& ranges, View<const float> bias = {});

  /// Enqueues the merge of these keys into the state. `kv` must exist until the stream has done this work. Calls
  /// `progress` once. With the last piece (`options.pieces`) the kernel also computes the result. \throws Error if the
  /// shapes do not match, or after the last piece
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override;

  /// Enqueues out = o / l and lse = log 2 * m + log l, unless the kernel has computed them with the last keys, and adds the
  /// sinks. Ends the work on these queries.
  [[nodiscard]] AttentionResult<float> finish() override;

  /// The current state (o, m, l) on the host, with m in units of the natural logarithm. Waits for the stream. \throws Error
  /// after the last keys
  [[nodiscard]] Partial<float> to_partial() const;

  /// The kernel that begin() chose.
  [[nodiscard]] const cuda::ForwardKernel& kernel() const { return *kernel_; }

 private:
  Scoring scoring_;
  CudaOptions options_;
  cuda::DeviceTraits device_{};
  const cuda::ForwardKernel* kernel_ = nullptr;
  View<const T> q_;
  Shape bias_;
  std::shared_ptr<const cuda::QueryTables> tables_;
  cuda::PairsOnDevice pairs_;
  Tensor<float> o_, m_, l_;  // m in units of log 2
  bool fresh_ = true;        // no keys yet: o_, m_ and l_ are not initialised
  int seen_ = 0;             // pieces
  bool finished_ = false;    // after the last piece: o_ is out, and m_ is lse
};

/// Call begin(forward), then accumulate(kv, gradient) once per piece of the keys, then finish() -> dQ. Gradients are
/// fp32.
template <class T>
class CudaBackward final : public BackwardEngine<T> {
 public:
  using value_type = T;

  explicit CudaBackward(Scoring scoring, CudaOptions options = {})
      : scoring_(std::move(scoring)), options_(std::move(options)) {}

  /// Starts with dQ = 0 and dBias = 0. `ranges` are the positions of the queries.
  void begin(const BackwardInputs<T>& forward, const TokenRanges& ranges);

  /// Enqueues: adds the contribution of these keys to dQ and dBias, and the contribution of these queries to dK and dV in
  /// `gradient`.
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {}) override;

  /// dQ. Ends the work on these queries.
  [[nodiscard]] Tensor<float> finish() override;
  /// dBias, like the bias: dS, summed over what broadcasts.
  [[nodiscard]] TermGradients<float> term_gradients() override { return {std::move(grad_bias_)}; }

  [[nodiscard]] const cuda::BackwardKernel& kernel() const { return *kernel_; }

 private:
  Scoring scoring_;
  CudaOptions options_;
  cuda::DeviceTraits device_{};
  const cuda::BackwardKernel* kernel_ = nullptr;
  BackwardInputs<T> forward_;
  std::shared_ptr<const cuda::QueryTables> tables_;
  cuda::PairsOnDevice pairs_;
  Tensor<float> delta_;      // [batch, heads, seq, 1]
  Tensor<float> grad_q_;     // [batch, heads, seq, dim]
  Tensor<float> grad_bias_;  // like the bias
};

/// Single device: begin, one accumulate, finish, all enqueued on `options.stream`. q, k and v are in device memory. The
/// result names the kernel that "auto" has chosen.
/// \throws InputError if no kernel supports this type and dim on this device
template <class T>
[[nodiscard]] DeviceAttentionResult attention_forward(View<const T> q, View<const T> k, View<const T> v,
                                                      const Scoring& scoring, const CudaOptions& options,
                                                      View<const float> bias = {}) {
  CudaOptions once = options;
  once.pieces = 1;
  CudaEngine<T> engine(scoring, once);
  engine.begin(q, whole(q.shape().seq), bias);
  engine.accumulate({k, v, whole(k.shape().seq)});
  return {engine.finish(), engine.kernel().name};
}

/// The gradients of a whole attention, in device memory. That of sinks is sink_gradient().
struct DeviceGradients : Gradients<float> {
  const char* kernel = "";  ///< the name of the kernel that computed them
};

/// sink_gradient() of arrays in device memory, summed on the host: waits for the stream where there are sinks.
template <class T>
[[nodiscard]] std::vector<double> sink_gradient(const BackwardInputs<T>& forward,
                                                const std::vector<double>& sinks, cuda::StreamHandle stream) {
  if (sinks.empty()) return {};
  const Tensor<float> out = cuda::downloaded<float>(forward.out, stream),
                      lse = cuda::downloaded<float>(forward.lse, stream),
                      grad_out = cuda::downloaded<T>(forward.grad_out, stream);
  return ring_attention::sink_gradient<float>({{}, out, lse, grad_out}, sinks);
}

/// Single device, like attention_forward. \throws InputError if no kernel supports this type and dim on this device
template <class T>
[[nodiscard]] DeviceGradients attention_backward(const BackwardInputs<T>& forward, View<const T> k,
                                                 View<const T> v, const Scoring& scoring,
                                                 const CudaOptions& options) {
  CudaBackward<T> engine(scoring, options);
  DeviceGradients gradients;
  gradients.k = cuda::DeviceTensor<float>(k.shape());
  gradients.v = cuda::DeviceTensor<float>(v.shape());
  engine.begin(forward, whole(forward.q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  gradients.terms() = engine.term_gradients();
  gradients.kernel = engine.kernel().name;
  return gradients;
}

}  // namespace ring_attention
