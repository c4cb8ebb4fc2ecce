// Lesson 11: runs, checks and times one kernel of the forward on one problem.
#pragma once

#include "cli/gpu_timing.hpp"
#include "common/lesson.hpp"
#include "common/random_problem.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"

namespace ring_attention::tensor_cores {

enum class Mistake { none, mask_offset, forgotten_piece };

template <class T, class Kernel>
bool takes(const Kernel& kernel, Index dim) {
  return kernel.takes(cuda::traits_for({}), cuda::type_of<T>, static_cast<int>(dim));
}

// The array rounded to T.
template <class T>
Tensor<float> in(const Tensor<float>& array, cuda::StreamHandle stream) {
  return cuda::downloaded(cuda::uploaded<T>(array, stream), stream);
}

// The number of visible pairs of a query and a key.
inline double pairs(Index seq, bool causal) {
  return static_cast<double>(causal ? seq * (seq + 1) / 2 : seq * seq);
}

// A problem in T and its reference, for every kernel that supports T.
template <class T>
class Checker {
 public:
  Checker(const RandomProblem& problem, cuda::StreamHandle stream)
      : p_(problem),
        stream_(stream),
        q_(in<T>(p_.queries<float>(whole(p_.q.seq)), stream)),
        k_(in<T>(p_.keys<float>(), stream)),
        v_(in<T>(p_.values<float>(), stream)),
        want_(reference_forward(converted<double>(q_), converted<double>(k_), converted<double>(v_),
                                p_.scoring)) {}

  // The keys arrive in two pieces, the later ones first, as in a ring.
  [[nodiscard]] Comparison run(const cuda::ForwardKernel& kernel, Mistake mistake) const {
    Scoring scoring = p_.scoring;
    if (mistake == Mistake::mask_offset) ++scoring.mask.offset;
    CudaEngine<T> engine(scoring, {.stream = stream_, .kernel = kernel.name});
    const auto q = cuda::uploaded<T>(q_, stream_);
    engine.begin(q, whole(p_.q.seq));
    const Index cut = p_.kv.seq / 3;
    for (const TokenRange& piece : {TokenRange{cut, 1, p_.kv.seq - cut}, TokenRange{0, 1, cut}}) {
      const auto k = cuda::uploaded<T>(rows(k_, piece), stream_),
                 v = cuda::uploaded<T>(rows(v_, piece), stream_);
      if (mistake == Mistake::forgotten_piece) engine.begin(q, whole(p_.q.seq));
      engine.accumulate({k, v, {piece}});
      (void)engine.to_partial();  // waits for the kernel before k and v are freed
    }
    // p is rounded to T for the second product; the scores are not rounded.
    Tolerance tolerance = p_.template tolerance<float>(want_);
    const AttentionResult<float> got = engine.finish();
    const Comparison lse =
        compare(cuda::downloaded(got.lse, stream_), want_.lse, tolerance, {.allow_negative_infinity = true});
    tolerance.absolute += 0.75 * cuda::unit_roundoff(cuda::type_of<T>) * want_.max_abs_value;
    const Comparison out = compare(cuda::downloaded(got.out, stream_), want_.out, tolerance);
    return out.ok ? (lse.ok ? out : lse) : out;
  }

 private:
  static Tensor<float> rows(const Tensor<float>& all, const TokenRange& range) {
    Tensor<float> some(all.shape().with_seq(range.count));
    for (Index h = 0; h < all.shape().heads; ++h)
      matrix(some.view(), 0, h) = matrix(all.view(), 0, h, range.begin, range.count);
    return some;
  }

  RandomProblem p_;
  cuda::StreamHandle stream_;
  Tensor<float> q_, k_, v_;  // numbers of T
  Reference want_;
};

// A kernel and the type in which it is timed: fp32 if it supports fp32, else bf16.
template <class Kernel>
struct Contender {
  const Kernel* kernel;
  cuda::Type type;
};

template <class Kernel>
std::vector<Contender<Kernel>> contenders(std::span<const Kernel> kernels, Index dim) {
  std::vector<Contender<Kernel>> all;
  for (const Kernel& kernel : kernels) {
    if (takes<float>(kernel, dim))
      all.push_back({&kernel, cuda::Type::fp32});
    else if (takes<Bf16>(kernel, dim))
      all.push_back({&kernel, cuda::Type::bf16});
  }
  return all;
}
using ForwardContender = Contender<cuda::ForwardKernel>;

// Random q, k and v, made once for all contenders.
struct Inputs {
  explicit Inputs(const Shape& of) : shape(of) {
    const RandomProblem p{shape, shape, {}};
    q = p.queries<float>(whole(shape.seq));
    k = p.keys<float>();
    v = p.values<float>();
  }
  Shape shape;
  Tensor<float> q, k, v;
};

template <class T>
double flops_in(const ForwardContender& contender, const Inputs& inputs, bool causal, Index calls,
                cuda::StreamHandle stream) {
  const Shape& shape = inputs.shape;
  const auto q = cuda::uploaded<T>(inputs.q, stream), k = cuda::uploaded<T>(inputs.k, stream),
             v = cuda::uploaded<T>(inputs.v, stream);
  const Scoring scoring{default_scale(shape.dim), causal ? Mask::causal() : Mask{}};
  CudaEngine<T> engine(scoring, {.stream = stream, .kernel = contender.kernel->name});
  engine.begin(q, whole(shape.seq));
  const auto once = [&] { engine.accumulate({k, v, whole(shape.seq)}); };
  const double seconds = cuda::time_once_or(stream, static_cast<int>(calls), once);
  return 4 * static_cast<double>(shape.batch * shape.heads * shape.dim) * pairs(shape.seq, causal) / seconds;
}

// Operations per second, with 4 D operations per visible pair of query and key. 0 if the GPU has too little memory.
inline double flops(const ForwardContender& contender, const Inputs& inputs, bool causal, Index calls,
                    cuda::StreamHandle stream) {
  const Index arrays = 8 * inputs.shape.size() * 4;  // q, k, v, o and the copies for their conversion
  const Index scores = contender.kernel->number == 0 ? 4 * inputs.shape.seq * inputs.shape.seq : 0;
  if (arrays + scores > cuda::free_bytes()) return 0;
  return contender.type == cuda::Type::fp32 ? flops_in<float>(contender, inputs, causal, calls, stream)
                                            : flops_in<Bf16>(contender, inputs, causal, calls, stream);
}

}  // namespace ring_attention::tensor_cores
