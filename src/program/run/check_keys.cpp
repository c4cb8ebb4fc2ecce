#include "program/run/check_keys.hpp"

#include <array>
#include <numeric>

#include "program/run/rows.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

constexpr Index queries_at_a_time = 2048;

/// What the queries of this rank add, and the largest sizes in them.
struct Sums {
  explicit Sums(const KeyValue<double>& keys)
      : gradients{Tensor<double>(keys.k.shape()), Tensor<double>(keys.v.shape())}, mass(keys.v.shape()) {
    for (Tensor<double>* squares : this->squares()) *squares = Tensor<double>(keys.k.shape().per_row());
  }

  [[nodiscard]] std::array<Tensor<double>*, 4> squares() {
    return {&gradients.sizes_k, &gradients.sizes_v, &gradients.inputs_k, &gradients.inputs_v};
  }

  KeyGradients gradients;
  Tensor<double> mass;  // sum of P over the queries, in every column
  double max_dp = 0, max_q = 0, max_grad_out = 0;
};

double largest(const Tensor<double>& array) {
  double most = 0;
  for (const double x : array.view().elements()) most = std::max(most, std::abs(x));
  return most;
}

Eigen::VectorXd norms(View<const double> array, Index head) {
  return matrix(array, 0, head).rowwise().norm();
}

/// |x|_4 of each row.
Eigen::VectorXd norms_4(View<const double> array, Index head) {
  return matrix(array, 0, head).array().square().matrix().rowwise().norm().cwiseSqrt();
}

/// Adds to the squares what the queries of one head give, as the reference does (add_squares).
void add_squares(Sums& sums, const BackwardInputs<double>& rows, const Scoring& scoring, Index head,
                 const KeyValue<double>& keys, const TokenRange& range) {
  const auto square = [](double x) { return x * x; };
  const double scale = std::abs(scoring.scale);
  const Eigen::VectorXd q = norms(rows.q, head), dout = norms(rows.grad_out, head),
                        q4 = scale * norms_4(rows.q, head), dout4 = norms_4(rows.grad_out, head),
                        k4 = norms_4(keys.k, 0), v4 = norms_4(keys.v, 0);
  const Matrix<double> products = scoring.scale * matrix(rows.q, 0, head) * matrix(keys.k, 0, 0).transpose(),
                       dps = matrix(rows.grad_out, 0, head) * matrix(keys.v, 0, 0).transpose();
  const std::vector<Index> at = positions(keys.ranges);
  double *const sizes_k = sums.gradients.sizes_k.data(), *const sizes_v = sums.gradients.sizes_v.data(),
                *const inputs_k = sums.gradients.inputs_k.data(),
                *const inputs_v = sums.gradients.inputs_v.data();
  for (Index i = 0; i < range.count; ++i) {
    const Index query = range.begin + i * range.stride;
    const DropoutRow row = scoring.dropout.row(0, head, query);
    const double lse = rows.lse(0, head, i),
                 delta = matrix(rows.grad_out, 0, head).row(i).dot(matrix(rows.out, 0, head).row(i));
    for (std::size_t j = 0; j < at.size(); ++j) {
      if (!scoring.mask.allowed(query, at[j])) continue;
      const auto key = static_cast<Index>(j);
      const double capped = scoring.capped(products(i, key)), slope = scoring.slope_of_cap(capped),
                   score = capped + (scoring.adds() ? scoring.added(head, query, at[j]) : 0),
                   p = std::exp(score - lse),
                   factor = !scoring.dropout.drops()            ? 1
                            : scoring.dropout.keeps(row, at[j]) ? scoring.dropout.scale()
                                                                : 0;
      const double terms = p * factor * dout4(i) * v4(key), of_score = q4(i) * k4(key) * slope,
                   of_product = scale * slope * q(i), of_v = p * factor * dout(i);
      const double errors = p * std::abs(factor * dps(i, key) - delta) * (of_score + 1) + terms;
      sizes_k[j] += square(terms * of_product);
      sizes_v[j] += square(of_v);
      inputs_k[j] += 2 * square(errors * of_product);
      inputs_v[j] += square(of_v) * (1 + 2 * square(of_score));
    }
  }
}

/// The queries at `rows` of this rank, which are those of `range`.
template <class T>
void add_queries(Sums& sums, const RankResults<T>& results, const Scoring& scoring, Index batch,
                 const Interval& heads, const KeyValue<double>& keys, const TokenRange& range,
                 const std::vector<Index>& rows) {
  const auto rows_of = [&](View<const T> array) {
    return gather_rows<T>(array, batch, heads.begin, heads.end - heads.begin, rows);
  };
  const Tensor<double> q = rows_of(*results.q), out = rows_of(results.forward->out),
                       lse = rows_of(results.forward->lse), grad_out = rows_of(*results.grad_out);
  BlockwiseBackward<double> engine(scoring, check_sample_keys);
  engine.begin({q, out, lse, grad_out, {}}, {range});
  engine.accumulate(keys, {sums.gradients.k, sums.gradients.v});
  const Tensor<double> ones(out.shape(), 1.0);  // dV = P^T dO is then the sum of P
  Tensor<double> unused(keys.k.shape());
  engine.begin({q, out, lse, ones, {}}, {range});
  engine.accumulate(keys, {unused, sums.mass});

  for (Index h = 0; h < q.shape().heads; ++h) {
    add_squares(sums, {q, out, lse, grad_out, {}}, scoring, h, keys, range);
    sums.max_dp = std::max(
        sums.max_dp,
        (matrix(grad_out.view(), 0, h).cwiseAbs() * matrix(keys.v, 0, 0).cwiseAbs().transpose()).maxCoeff());
  }
  sums.max_q = std::max(sums.max_q, largest(q));
  sums.max_grad_out = std::max(sums.max_grad_out, largest(grad_out));
}

}  // namespace

SampledKeys::SampledKeys(const TokenRanges& keys) {
  const Index step = std::max<Index>(1, count(keys) / check_sample_keys);
  Index first = 0;
  for (const TokenRange& range : keys) {
    if (range.count == 0) continue;
    const Index some = (range.count - 1) / step + 1;
    ranges.push_back({range.begin, range.stride * step, some});
    for (Index i = 0; i < some; ++i) rows.push_back(first + i * step);
    first += range.count;
  }
}

template <class T>
KeyGradients key_gradients(const Communicator& comm, const RankResults<T>& results, const Scoring& scoring,
                           Index batch, const Interval& heads, const KeyValue<double>& keys,
                           Activity& activity) {
  Sums sums(keys);
  Index first = 0;
  for (const TokenRange& range : results.query_ranges) {
    for (Index i = 0; i < range.count; i += queries_at_a_time) {
      std::vector<Index> rows(static_cast<std::size_t>(std::min(queries_at_a_time, range.count - i)));
      std::iota(rows.begin(), rows.end(), first + i);
      add_queries(sums, results, scoring, batch, heads, keys, range.slice(i, std::ssize(rows)), rows);
      activity.beat();
    }
    first += range.count;
  }
  for (Tensor<double>* sum : {&sums.gradients.k, &sums.gradients.v, &sums.mass})
    sum_over_ranks(comm, sum->view().elements());
  for (Tensor<double>* sum : sums.squares()) sum_over_ranks(comm, sum->view().elements());
  const double mass = largest(sums.mass), dp = max_over_ranks(comm, sums.max_dp);
  sums.gradients.magnitude_k = 2 * std::abs(scoring.scale) * dp * max_over_ranks(comm, sums.max_q) * mass;
  sums.gradients.magnitude_v = max_over_ranks(comm, sums.max_grad_out) * mass;
  return std::move(sums.gradients);
}

template KeyGradients key_gradients(const Communicator&, const RankResults<float>&, const Scoring&, Index,
                                    const Interval&, const KeyValue<double>&, Activity&);
template KeyGradients key_gradients(const Communicator&, const RankResults<double>&, const Scoring&, Index,
                                    const Interval&, const KeyValue<double>&, Activity&);

}  // namespace ring_attention
