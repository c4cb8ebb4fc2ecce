#include "benchmarks/peers.hpp"

#include <memory>
#include <string>
#include <type_traits>

#if defined(RING_ATTENTION_OPENBLAS)
#include <cblas.h>
#endif
#if defined(RING_ATTENTION_ONEDNN)
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace ring_attention {

#if defined(RING_ATTENTION_OPENBLAS)
template <class T>
std::function<void()> openblas_gemm(Index n, int threads) {
  const Shape shape{1, 1, n, n};
  auto a = std::make_shared<Tensor<T>>(shape, T{0.5F}), b = std::make_shared<Tensor<T>>(shape, T{0.25F});
  auto c = std::make_shared<Tensor<T>>(shape);
  constexpr auto gemm = [] {
    if constexpr (std::is_same_v<T, float>)
      return cblas_sgemm;
    else
      return cblas_dgemm;
  }();
  return [=] {
    openblas_set_num_threads(threads);
    const auto size = static_cast<int>(n);
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1, a->data(), size, b->data(), size, 0,
         c->data(), size);
  };
}
#else
template <class T>
std::function<void()> openblas_gemm(Index, int) {
  return {};
}
#endif
template std::function<void()> openblas_gemm<float>(Index, int);
template std::function<void()> openblas_gemm<double>(Index, int);

#if defined(RING_ATTENTION_ONEDNN)
namespace {

using Descriptor = dnnl::memory::desc;

dnnl::matmul make_matmul(const dnnl::engine& engine, const Descriptor& a, const Descriptor& b,
                         const Descriptor& c) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul({engine, a, b, c});
#else
  return dnnl::matmul({dnnl::matmul::desc(a, b, c), engine});
#endif
}

dnnl::softmax_forward make_softmax(const dnnl::engine& engine, const Descriptor& scores) {
  constexpr auto inference = dnnl::prop_kind::forward_inference;
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::softmax_forward({engine, inference, dnnl::algorithm::softmax_accurate, scores, scores, 2});
#else
  return dnnl::softmax_forward({dnnl::softmax_forward::desc(inference, scores, 2), engine});
#endif
}

/// The three steps over all heads at once. The queries are scaled beforehand: nothing here is paid for that.
class OneDnn {
 public:
  OneDnn(const DenseProblem& p, int threads)
      : threads_(threads),
        scaled_(p.q.shape()),
        scores_({1, p.q.shape().heads, p.q.shape().seq, p.q.shape().seq}) {
    omp_set_num_threads(threads_);
    std::transform(p.q.elements().begin(), p.q.elements().end(), scaled_.data(),
                   [&](float x) { return p.scale * x; });
    using Tag = dnnl::memory::format_tag;
    const auto [batch, heads, seq, dim] = p.q.shape();
    const auto describe = [](Index a, Index b, Index c, Tag tag) {
      return Descriptor({a, b, c}, dnnl::memory::data_type::f32, tag);
    };
    const auto rows = describe(heads, seq, dim, Tag::abc), scores = describe(heads, seq, seq, Tag::abc);
    const auto keys = describe(heads, dim, seq, Tag::acb);  // k as it lies is the transpose
    const auto memory = [&](const Descriptor& what, const float* data) {
      return dnnl::memory(what, engine_, const_cast<float*>(data));
    };
    q_ = memory(rows, scaled_.data());
    k_ = memory(keys, p.k.data());
    v_ = memory(rows, p.v.data());
    s_ = memory(scores, scores_.data());
    out_ = memory(rows, p.out.data());
    score_ = make_matmul(engine_, rows, keys, scores);
    softmax_ = make_softmax(engine_, scores);
    weigh_ = make_matmul(engine_, scores, rows, rows);
  }

  void operator()() {
    omp_set_num_threads(threads_);
    score_.execute(stream_, {{DNNL_ARG_SRC, q_}, {DNNL_ARG_WEIGHTS, k_}, {DNNL_ARG_DST, s_}});
    softmax_.execute(stream_, {{DNNL_ARG_SRC, s_}, {DNNL_ARG_DST, s_}});
    weigh_.execute(stream_, {{DNNL_ARG_SRC, s_}, {DNNL_ARG_WEIGHTS, v_}, {DNNL_ARG_DST, out_}});
    stream_.wait();
  }

 private:
  int threads_;
  Tensor<float> scaled_, scores_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::memory q_, k_, v_, s_, out_;
  dnnl::matmul score_, weigh_;
  dnnl::softmax_forward softmax_;
};

}  // namespace

std::function<void()> onednn_attention(const DenseProblem& problem, int threads) {
  return [peer = std::make_shared<OneDnn>(problem, threads)] { (*peer)(); };
}
#else
std::function<void()> onednn_attention(const DenseProblem&, int) { return {}; }
#endif

std::string peer_versions() {
  std::string versions;
#if defined(RING_ATTENTION_OPENBLAS)
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  versions += config.substr(0, config.find(' ', config.find(' ') + 1)) + " for " + openblas_get_corename();
#endif
#if defined(RING_ATTENTION_ONEDNN)
  const dnnl_version_t& v = *dnnl_version();
  versions += (versions.empty() ? "oneDNN " : ", oneDNN ") + std::to_string(v.major) + "." +
              std::to_string(v.minor) + "." + std::to_string(v.patch);
#endif
  return versions;
}

}  // namespace ring_attention
