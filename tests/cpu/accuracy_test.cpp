// The rounding errors of the fast engines in double, beside those of the readable ones: against long double.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/every_isa.hpp"
#include "ring_attention/cpu/backward.hpp"
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
      for (std::size_t j = 0; j < keys; ++j)
        for (std::size_t c = 0; c < dim(problem); ++c) {
          const long double weight = std::exp(s[j] - lse[i]);
          out[i * dim(problem) + c] += weight * at(p.v, j, c);
          grad_v[j * dim(problem) + c] += weight * at(problem.grad_out, i, c);
          grad_p[j] += at(problem.grad_out, i, c) * at(p.v, j, c);
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

/// The largest error of an array and the root of the mean square.
struct Errors {
  Errors(const Tensor<double>& got, const Exact& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto error = static_cast<double>(std::abs(got.data()[i] - want[i]));
      largest = std::max(largest, error);
      typical += error * error;
    }
    typical = std::sqrt(typical / static_cast<double>(want.size()));
  }
  double largest = 0, typical = 0;
};

void expect_at_most_twice(const char* name, const Tensor<double>& fast, const Tensor<double>& readable,
                          const Exact& want) {
  const Errors mine(fast, want), due(readable, want);
  EXPECT_GT(due.typical, 0) << name;
  EXPECT_TRUE(mine.typical <= 2 * due.typical)
      << name << ": " << mine.typical << ", readable " << due.typical;
#ifdef NDEBUG  // in a debug build Eigen sums in another order, and one number more or less decides
  EXPECT_TRUE(mine.largest <= 2 * due.largest)
      << name << ": " << mine.largest << ", readable " << due.largest;
#endif
}

TEST(CpuEngineInDouble, IsAsAccurateAsTheReadableEngine) {
  if (std::numeric_limits<long double>::digits <= std::numeric_limits<double>::digits)
    GTEST_SKIP() << "long double is double here";
  for (const double scale : {0.125, 1.0})  // scores of a few units, and of some tens
    for (const Mask& mask : {Mask{}, Mask::causal()}) {
      const auto problem = make_gradient_problem<double>(
          {.kv_heads = 1, .queries = 150, .keys = 150, .dim = 64, .scoring = {scale, mask}});
      const Problem<double>& p = problem.forward;
      const LongDouble want(problem);
      const auto readable = blockwise_forward<double>(p.q, p.k, p.v, p.what.scoring);
      const auto readable_gradients = device_gradients(problem);
      for_each_isa([&](Isa isa) {
        const CpuOptions options{.isa = isa};
        const auto fast = attention_forward<double>(p.q, p.k, p.v, p.what.scoring, options);
        const auto gradients = attention_backward<double>({p.q, fast.out, fast.lse, problem.grad_out}, p.k,
                                                          p.v, p.what.scoring, options);
        expect_at_most_twice("out", fast.out, readable.out, want.out);
        expect_at_most_twice("lse", fast.lse, readable.lse, want.lse);
        expect_at_most_twice("dq", gradients.q, readable_gradients.q, want.grad_q);
        expect_at_most_twice("dk", gradients.k, readable_gradients.k, want.grad_k);
        expect_at_most_twice("dv", gradients.v, readable_gradients.v, want.grad_v);
      });
    }
}

}  // namespace
}  // namespace ring_attention::test
