// Lesson 11: checks and times the kernels of the backward like those of the forward.
#pragma once

#include <algorithm>

#include "forward_runs.hpp"

namespace ring_attention::tensor_cores {

// A problem with its dO, and its gradients by dense attention in double.
template <class T>
class BackwardChecker {
 public:
  BackwardChecker(const RandomProblem& problem, cuda::StreamHandle stream)
      : p_(problem),
        stream_(stream),
        q_(in<T>(p_.queries<float>(whole(p_.q.seq)), stream)),
        k_(in<T>(p_.keys<float>(), stream)),
        v_(in<T>(p_.values<float>(), stream)),
        grad_out_(in<T>(p_.make<float>(p_.q, 3, whole(p_.q.seq)), stream)) {
    const auto q = converted<double>(q_), k = converted<double>(k_), v = converted<double>(v_);
    forward_ = reference_forward(q, k, v, p_.scoring);
    want_ = reference_backward(q, k, v, converted<double>(grad_out_), p_.scoring);
  }

  // The worst comparison of dQ, dK and dV.
  [[nodiscard]] Comparison run(const cuda::BackwardKernel& kernel) const {
    const auto there = [&](const Tensor<float>& array) { return cuda::uploaded<T>(array, stream_); };
    const auto q = there(q_), k = there(k_), v = there(v_), grad_out = there(grad_out_);
    const auto out = cuda::uploaded<float>(converted<float>(forward_.out), stream_),
               lse = cuda::uploaded<float>(converted<float>(forward_.lse), stream_);
    cuda::DeviceTensor<float> dk(k.shape()), dv(v.shape());
    CudaBackward<T> engine(p_.scoring, {.stream = stream_, .kernel = kernel.name});
    engine.begin({q, out, lse, grad_out}, whole(p_.q.seq));
    engine.accumulate({k, v, whole(p_.kv.seq)}, {dk, dv});
    const Comparison of_q = compared(engine.finish(), want_.q, want_.magnitude_q),
                     of_k = compared(dk, want_.k, want_.magnitude_k),
                     of_v = compared(dv, want_.v, want_.magnitude_v);
    return std::max({of_q, of_k, of_v}, [](const Comparison& a, const Comparison& b) {
      return a.ok != b.ok ? a.ok : a.relative_error < b.relative_error;
    });
  }

 private:
  [[nodiscard]] Comparison compared(const Tensor<float>& got, const Tensor<double>& want,
                                    double magnitude) const {
    const Index terms = std::max(p_.kv.seq, p_.q.seq * p_.q.heads / p_.kv.heads);
    Tolerance tolerance = gradient_tolerance<float>(terms, want_.max_abs_score, magnitude);
    tolerance.absolute +=
        cuda::unit_roundoff(cuda::type_of<T>) * magnitude;  // each sum has one rounded factor
    return compare(cuda::downloaded(got, stream_), want, tolerance);
  }

  RandomProblem p_;
  cuda::StreamHandle stream_;
  Tensor<float> q_, k_, v_, grad_out_;  // numbers of T
  Reference forward_;
  ReferenceGradients want_;
};

template <class T>
double backward_flops_in(const cuda::BackwardKernel& kernel, const Inputs& inputs, bool causal, Index calls,
                         cuda::StreamHandle stream) {
  const Shape& shape = inputs.shape;
  const auto q = cuda::uploaded<T>(inputs.q, stream), k = cuda::uploaded<T>(inputs.k, stream),
             v = cuda::uploaded<T>(inputs.v, stream);
  const Scoring scoring{default_scale(shape.dim), causal ? Mask::causal() : Mask{}};
  CudaEngine<T> forward(scoring, {.stream = stream});
  forward.begin(q, whole(shape.seq));
  forward.accumulate({k, v, whole(shape.seq)});
  const AttentionResult<float> attended = forward.finish();
  CudaBackward<T> engine(scoring, {.stream = stream, .kernel = kernel.name});
  engine.begin({q, attended.out, attended.lse, v},
               whole(shape.seq));  // v serves as dO: its values do not matter
  cuda::DeviceTensor<float> dk(shape), dv(shape);
  const auto once = [&] { engine.accumulate({k, v, whole(shape.seq)}, {dk, dv}); };
  const double seconds = cuda::time_once_or(stream, static_cast<int>(calls), once);
  return 10 * static_cast<double>(shape.batch * shape.heads * shape.dim) * pairs(shape.seq, causal) / seconds;
}

// Operations per second, with 10 D operations per visible pair. 0 if the GPU has too little memory.
inline double backward_flops(const cuda::BackwardKernel& kernel, cuda::Type type, const Inputs& inputs,
                             bool causal, Index calls, cuda::StreamHandle stream) {
  if (12 * inputs.shape.size() * 4 > cuda::free_bytes()) return 0;
  return type == cuda::Type::fp32 ? backward_flops_in<float>(kernel, inputs, causal, calls, stream)
                                  : backward_flops_in<Bf16>(kernel, inputs, causal, calls, stream);
}

/// One table of the backward's kernels, at the longest length.
inline void show_backward(Lesson& lesson, const Inputs& inputs, Index calls, cuda::StreamHandle stream) {
  Table table({"S = " + std::to_string(inputs.shape.seq), "type", "same bits every time", "full", "causal"});
  for (const auto& [kernel, type] : contenders(cuda::backward_kernels(), inputs.shape.dim)) {
    std::vector<std::string> cells{kernel->name, cuda::name_of(type), kernel->deterministic ? "yes" : "no"};
    for (const bool causal : {false, true})
      cells.push_back(format("%.1f", backward_flops(*kernel, type, inputs, causal, calls, stream) / 1e12));
    table.row(cells);
  }
  lesson.print("backward", table);
}

}  // namespace ring_attention::tensor_cores
