// A rank of a user's program whose arrays are in the memory of a GPU.
#pragma once

#include "cuda/cuda_runs.hpp"
#include "ring_attention/gpu_attention.hpp"

namespace ring_attention::test {

template <class T>
struct GpuUser {
  GpuUser(const GradientProblem<float>& problem, const RankGrid& grid)
      : scoring(problem.what().scoring),
        placement(Placement(problem.what().kind, problem.what().queries, grid.ring.size),
                  Placement(problem.what().kind, problem.what().keys, grid.ring.size)) {
    const TokenRanges rows = grid.slice(placement.queries), keys = grid.slice(placement.keys);
    q = cuda::uploaded<T>(rows_of(problem.forward.q, rows), nullptr);
    k = cuda::uploaded<T>(rows_of(problem.forward.k, keys), nullptr);
    v = cuda::uploaded<T>(rows_of(problem.forward.v, keys), nullptr);
    if (problem.what().bias()) bias = bias_of(problem.forward, rows, nullptr);
    grad_out = cuda::uploaded<T>(rows_of(problem.grad_out, rows), nullptr);
    out = cuda::DeviceTensor<float>(q.shape());
    lse = cuda::DeviceTensor<float>(q.shape().per_row());
    grad_q = cuda::DeviceTensor<float>(q.shape());
    grad_k = cuda::DeviceTensor<float>(k.shape());
    grad_v = cuda::DeviceTensor<float>(v.shape());
    if (bias) grad_bias = cuda::DeviceTensor<float>(bias->shape());
    q_view = q;
  }

  void enqueue_forward(GpuAttention& attention, StreamHandle stream) const {
    attention.forward<T>(stream, {q_view, k, v, bias}, {to(out), to(lse)}, placement, scoring);
  }
  void enqueue(GpuAttention& attention, StreamHandle stream) const {
    enqueue_forward(attention, stream);
    numbers = attention.backward<T>(stream, {q_view, k, v, bias}, {out, lse}, grad_out,
                                    {to(grad_q), to(grad_k), to(grad_v), to(grad_bias)}, placement, scoring);
  }
  [[nodiscard]] AttentionResult<float> attended(StreamHandle stream) const {
    return {cuda::downloaded(out, stream), cuda::downloaded(lse, stream)};
  }
  [[nodiscard]] Gradients<float> gradients(StreamHandle stream) const {
    return {cuda::downloaded(grad_q, stream),
            cuda::downloaded(grad_k, stream),
            cuda::downloaded(grad_v, stream),
            {{cuda::downloaded(grad_bias, stream)}, numbers}};
  }
  [[nodiscard]] std::pair<AttentionResult<float>, Gradients<float>> attend(GpuAttention& attention,
                                                                           StreamHandle stream) const {
    enqueue(attention, stream);
    return {attended(stream), gradients(stream)};
  }
  /// Enqueues NaN into the results.
  void clear(StreamHandle stream) {
    for (auto* array : {&out, &lse, &grad_q, &grad_k, &grad_v})
      cuda::check(cudaMemsetAsync(array->data(), 0xff, array->bytes(), stream));
  }

  Scoring scoring;
  Placements placement;
  Tensor<T> q, k, v, grad_out;
  std::optional<Tensor<float>> bias;
  Tensor<float> out, lse, grad_q, grad_k, grad_v, grad_bias;
  View<const T> q_view;  // the q of the calls
  mutable TermNumbers numbers;

 private:
  /// Results are on the GPU: the constness of this object is not theirs.
  static View<float> to(const Tensor<float>& array) {
    return {const_cast<float*>(array.data()), array.shape()};
  }
};

/// out and lse, where q is written late, and overwritten after the call, on the same stream. The results are copied there.
template <class T>
AttentionResult<float> in_order_of(const GradientProblem<float>& problem, const RankGrid& grid,
                                   GpuAttention& attention, StreamHandle stream) {
  GpuUser<T> user(problem, grid);
  cuda::DeviceTensor<T> late(user.q.shape());
  user.q_view = late;
  cuda::copy<T>(late.view().elements(), std::as_const(user.q).view().elements(), stream);
  user.enqueue_forward(attention, stream);
  cuda::check(cudaMemsetAsync(late.data(), 0xff, late.bytes(), stream));
  return user.attended(stream);
}

}  // namespace ring_attention::test
