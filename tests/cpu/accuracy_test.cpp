// The rounding errors of the fast engines in double, beside those of the readable ones: against long double.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "cpu/every_isa.hpp"
#include "ring_attention/cpu/attention_backward.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

using Exact = std::vector<long double>;  // an array, row by row

/// Dense attention of one head and its gradients in long double: the formulas, one after the other.
struct LongDouble {
  explicit LongDouble(const GradientProblem<double>& problem)
      : out(size(problem.forward.q)),
        lse(size(problem.forward.q) / dim(problem)),
        grad_q(out.size()),
        grad_k(size(problem.forward.k)),
        grad_v(grad_k.size()) {
    const Problem<double>& p = problem.forward;
    const auto at = [&](const Tensor<double>& x, std::size_t row, std::size_t c) -> long double {
      return x.data()[row * dim(problem) + c];
    };
    const std::size_t keys = grad_k.size() / dim(problem);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      Exact s(keys, -std::numeric_limits<long double>::infinity()), grad_p(keys);
      long double top = s[0], sum = 0, delta = 0;
      for (std::size_t j = 0; j < keys; ++j) {
        if (!p.what.scoring.mask.allowed(static_cast<Index>(i), static_cast<Index>(j))) continue;
        s[j] = 0;
        for (std::size_t c = 0; c < dim(problem); ++c) s[j] += at(p.q, i, c) * at(p.k, j, c);
        s[j] *= p.what.scoring.scale;
        top = std::max(top, s[j]);
      }
      for (const long double x : s) sum += std::exp(x - top);
      lse[i] = top + std::log(sum);
      for (std::size_t j = 0; j < keys; ++j) {
        const long double weight = std::exp(s[j] - lse[i]);
        for (std::size_t c = 0; c < dim(problem); ++c) {
          out[i * dim(problem) + c] += weight * at(p.v, j, c);
          grad_v[j * dim(problem) + c] += weight * at(problem.grad_out, i, c);
          grad_p[j] += at(problem.grad_out, i, c) * at(p.v, j, c);
        }
      }
      for (std::size_t c = 0; c < dim(problem); ++c)
        delta += at(problem.grad_out, i, c) * out[i * dim(problem) + c];
      for (std::size_t j = 0; j < keys; ++j) {
        const long double grad_s = std::exp(s[j] - lse[i]) * (grad_p[j] - delta) * p.what.scoring.scale;
        for (std::size_t c = 0; c < dim(problem); ++c) {
          grad_q[i * dim(problem) + c] += grad_s * at(p.k, j, c);
          grad_k[j * dim(problem) + c] += grad_s * at(p.q, i, c);
        }
      }
    }
  }

  Exact out, lse, grad_q, grad_k, grad_v;

 private:
  static std::size_t size(const Tensor<double>& x) { return static_cast<std::size_t>(x.size()); }
  static std::size_t dim(const GradientProblem<double>& problem) {
    return static_cast<std::size_t>(problem.what().dim);
  }
};

/// The largest error of an array over several problems, and the root of the mean square.
class Errors {
 public:
  void add(const Tensor<double>& got, const Exact& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto error = static_cast<double>(std::abs(got.data()[i] - want[i]));
      finite_ = finite_ && std::isfinite(error);
      largest_ = std::max(largest_, error);
      squares_ += error * error;
    }
    count_ += static_cast<double>(want.size());
  }
  [[nodiscard]] bool finite() const { return finite_; }
  [[nodiscard]] double largest() const { return largest_; }
  [[nodiscard]] double typical() const { return std::sqrt(squares_ / count_); }

 private:
  bool finite_ = true;
  double largest_ = 0, squares_ = 0, count_ = 0;
};

/// Of out, lse, dQ, dK and dV.
using AllErrors = std::array<Errors, 5>;

void add(AllErrors& errors, const AttentionResult<double>& result, const Gradients<double>& gradients,
         const LongDouble& want) {
  errors[0].add(result.out, want.out);
  errors[1].add(result.lse, want.lse);
  errors[2].add(gradients.q, want.grad_q);
  errors[3].add(gradients.k, want.grad_k);
  errors[4].add(gradients.v, want.grad_v);
}

// One problem is not enough: its largest error is that of one number, and which number depends on the order of the
// readable engine's sums, which the compiler's options change.
TEST(CpuEngineInDouble, IsAsAccurateAsTheReadableEngine) {
  if (std::numeric_limits<long double>::digits <= std::numeric_limits<double>::digits)
    GTEST_SKIP() << "long double is double here";
  AllErrors readable;
  std::map<Isa, AllErrors> fast;
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U})
    for (const double scale : {0.125, 1.0})  // scores of a few units, and of some tens
      for (const Mask& mask : {Mask{}, Mask::causal()}) {
        const auto problem = make_gradient_problem<double>(
            {.kv_heads = 1, .queries = 150, .keys = 150, .dim = 64, .scoring = {scale, mask}, .seed = seed});
        const Problem<double>& p = problem.forward;
        const LongDouble want(problem);
        add(readable, blockwise_forward<double>(p.q, p.k, p.v, p.what.scoring), device_gradients(problem),
            want);
        for_each_isa([&](Isa isa) {
          const CpuOptions options{.isa = isa};
          const auto result = attention_forward<double>(p.q, p.k, p.v, p.what.scoring, options);
          add(fast[isa], result,
              attention_backward<double>({p.q, result.out, result.lse, problem.grad_out}, p.k, p.v,
                                         p.what.scoring, options),
              want);
        });
      }
  const std::array names{"out", "lse", "dq", "dk", "dv"};
  for (const auto& [isa, errors] : fast)
    for (std::size_t i = 0; i < errors.size(); ++i) {
      SCOPED_TRACE(std::string(names[i]) + " on " + name_of(isa));
      EXPECT_TRUE(errors[i].finite());
      EXPECT_GT(readable[i].typical(), 0);
      EXPECT_LE(errors[i].typical(), 2 * readable[i].typical());
      EXPECT_LE(errors[i].largest(), 2 * readable[i].largest());
    }
}

}  // namespace
}  // namespace ring_attention::test
