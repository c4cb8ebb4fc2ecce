// Lesson 07 on a GPU: a problem in device memory, and its gradients by this lesson, by the library and in double.
#pragma once

#include "backward.hpp"
#include "common/random_problem.hpp"
#include "ring_attention/attention/backward.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::lesson_07 {

using FloatsThere = cuda::DeviceTensor<float>;

/// A problem in device memory, with what the forward of lesson 03 left there.
struct Forward {
  Forward(const RandomProblem& problem, cuda::StreamHandle handle)
      : p(problem),
        stream(handle),
        q(cuda::uploaded<float>(p.queries<float>(whole(p.q.seq)), stream)),
        k(cuda::uploaded<float>(p.keys<float>(), stream)),
        v(cuda::uploaded<float>(p.values<float>(), stream)),
        grad_out(cuda::uploaded<float>(p.make<float>(p.q, 3, whole(p.q.seq)), stream)),
        result(attention_forward<float>(q, k, v, p.scoring, {.stream = stream})) {}
  RandomProblem p;
  cuda::StreamHandle stream;
  FloatsThere q, k, v, grad_out;
  DeviceAttentionResult result;
};

inline Gradients<float> zeros(const Shape& shape) {
  return {FloatsThere(shape), FloatsThere(shape), FloatsThere(shape)};
}

inline void by_hand(const Forward& f, FloatsThere& delta, Gradients<float>& d, const Mistakes& mistakes) {
  backward({f.q.data(), f.k.data(), f.v.data(), f.result.out.data(), f.grad_out.data(), f.result.lse.data(),
            delta.data(), d.q.data(), d.k.data(), d.v.data(), static_cast<int>(f.p.q.heads),
            static_cast<int>(f.p.q.seq), static_cast<float>(f.p.scoring.scale)},
           mistakes, f.stream);
}
inline Gradients<float> by_hand(const Forward& f, const Mistakes& mistakes) {
  Gradients<float> d = zeros(f.p.q);
  FloatsThere delta(f.p.q.per_row());
  by_hand(f, delta, d, mistakes);
  cuda::check(cudaStreamSynchronize(f.stream));  // delta ends here
  return d;
}

inline DeviceGradients by_library(const Forward& f, const char* kernel) {
  return attention_backward<float>({f.q, f.result.out, f.result.lse, f.grad_out}, f.k, f.v, f.p.scoring,
                                   {.stream = f.stream, .kernel = kernel});
}

inline ReferenceGradients reference_of(const RandomProblem& p) {
  const auto in_double = [](const Tensor<float>& array) { return converted<double>(array); };
  return reference_backward(in_double(p.queries<float>(whole(p.q.seq))), in_double(p.keys<float>()),
                            in_double(p.values<float>()), in_double(p.make<float>(p.q, 3, whole(p.q.seq))),
                            p.scoring);
}

inline RandomProblem problem_of(std::uint64_t seed, Index heads, Index seq) {
  const Shape shape{1, heads, seq, dim};
  return {shape, shape, {default_scale(dim), Mask::causal()}, seed};
}

}  // namespace ring_attention::lesson_07
