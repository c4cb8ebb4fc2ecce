/// \file
/// The engine of the GPU: the kernels of the ladder behind begin, accumulate, finish.
///
/// The same meaning as the readable BlockwiseEngine, with one difference: views are of device memory, and a call
/// enqueues its work on a stream and returns.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/cuda/choice.hpp"
#include "ring_attention/cuda/task.hpp"

namespace ring_attention {

/// How an engine of the GPU computes.
using cuda::CudaOptions;

/// What attention on a GPU leaves there: out and lse as in AttentionResult, in fp32.
struct DeviceAttended {
  cuda::DeviceTensor<float> out;
  cuda::DeviceTensor<float> lse;
  const char* kernel = "";  ///< the step of the ladder that computed them
};

/// begin(q), then accumulate(kv) once per piece of keys in any number and order, then finish(). T is float, Bf16 or
/// cuda::Fp16, the type of q, k and v; the state (o, m, l) is fp32 and carries over from piece to piece.
///
/// Memory: the state, which becomes the result, and 24 bytes a query.
template <class T>
class CudaEngine {
 public:
  using value_type = T;

  explicit CudaEngine(Scoring scoring, CudaOptions options = {});

  /// Starts with no key seen. `q` [batch, heads, seq, dim] stays with the caller and must outlive finish(); its
  /// tokens stand at `ranges`. \throws InputError when no kernel takes this type and dim on this device
  void begin(View<const T> q, TokenRanges ranges);

  /// Enqueues the merge of these keys into the state; `kv` must stay until the stream has come past it. Calls
  /// `progress` once. \throws Error when the shapes do not belong together
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {});

  /// out = o / l and lse = log 2 * m + log l, enqueued. Ends the work on these queries.
  [[nodiscard]] DeviceAttended finish();

  /// The state (o, m, l) as it stands, on the host, with m in units of the natural logarithm. Waits.
  [[nodiscard]] Partial<float> to_partial() const;

  /// The kernel that begin() chose.
  [[nodiscard]] const cuda::ForwardKernel& kernel() const { return *kernel_; }

 private:
  Scoring scoring_;
  CudaOptions options_;
  cuda::DeviceTraits device_{};
  const cuda::ForwardKernel* kernel_ = nullptr;
  View<const T> q_;
  cuda::MaskOnDevice mask_;
  cuda::DeviceTensor<float> o_, m_, l_;  // m in units of log 2
  bool fresh_ = true;                    // no key seen: the state's memory means nothing
};

/// What a backward on a GPU needs of the forward, for a rank's queries. All views are of device memory and stay with
/// the caller.
template <class T>
struct DeviceForwardResult {
  View<const T> q;         ///< [batch, heads, seq, dim]
  View<const float> out;   ///< like q; over all keys
  View<const float> lse;   ///< [batch, heads, seq, 1]; over all keys
  View<const T> grad_out;  ///< dO, like q
};

/// begin(forward), then accumulate(kv, gradient) once per piece of keys, then finish() -> dQ. Gradients are fp32.
template <class T>
class CudaBackward {
 public:
  using value_type = T;

  explicit CudaBackward(Scoring scoring, CudaOptions options = {});

  /// Starts with dQ = 0. The queries stand at `ranges`.
  void begin(const DeviceForwardResult<T>& forward, TokenRanges ranges);

  /// Enqueues: adds to dQ what these keys contribute, and to `gradient` what these queries contribute to dK and dV.
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {});

  /// dQ. Ends the work on these queries.
  [[nodiscard]] cuda::DeviceTensor<float> finish();

  [[nodiscard]] const cuda::BackwardKernel& kernel() const { return *kernel_; }

 private:
  Scoring scoring_;
  CudaOptions options_;
  cuda::DeviceTraits device_{};
  const cuda::BackwardKernel* kernel_ = nullptr;
  DeviceForwardResult<T> forward_;
  cuda::MaskOnDevice mask_;
  cuda::DeviceTensor<float> delta_;   // [batch, heads, seq, 1]
  cuda::DeviceTensor<float> grad_q_;  // [batch, heads, seq, dim]
};

/// Single device: begin, one accumulate, finish, all enqueued on `options.stream`. q, k and v are in device memory. With
/// the kernel "auto" the best one for the device computes; the result says which.
/// \throws InputError when no kernel takes this type and dim on this device
template <class T>
[[nodiscard]] DeviceAttended attention_forward(View<const T> q, View<const T> k, View<const T> v,
                                               const Scoring& scoring, const CudaOptions& options) {
  CudaEngine<T> engine(scoring, options);
  engine.begin(q, whole(q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)});
  return engine.finish();
}

/// The gradients of a whole attention, in device memory.
struct DeviceGradients {
  cuda::DeviceTensor<float> q, k, v;
  const char* kernel = "";  ///< the step of the ladder that computed them
};

/// Single device, like attention_forward. \throws InputError when no kernel takes this type and dim on this device
template <class T>
[[nodiscard]] DeviceGradients attention_backward(const DeviceForwardResult<T>& forward, View<const T> k,
                                                 View<const T> v, const Scoring& scoring,
                                                 const CudaOptions& options) {
  CudaBackward<T> engine(scoring, options);
  DeviceGradients gradients{{}, cuda::DeviceTensor<float>(k.shape()), cuda::DeviceTensor<float>(v.shape())};
  engine.begin(forward, whole(forward.q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  gradients.kernel = engine.kernel().name;
  return gradients;
}

}  // namespace ring_attention
