// Step 1: the formulas, one line each. Every line makes a new matrix.

#include "ladder.hpp"
#include "tiles.hpp"

namespace ring_attention {

using Eigen::MatrixXf, Eigen::VectorXf;
using namespace ladder_detail;

AttentionResult<float> textbook_eigen(View<const float> q, View<const float> k, View<const float> v,
                                      const Scoring& scoring, int threads) {
  constexpr Index block = 64;
  AttentionResult<float> result{Tensor<float>(q.shape()), Tensor<float>(q.shape().per_row())};
  for_each_query_tile(q.shape(), k.shape(), v.shape(), block, threads, [&](const Tile& rows, int) {
    const MatrixXf queries = rows.of_queries(q);
    MatrixXf o = MatrixXf::Zero(queries.rows(), queries.cols());
    VectorXf m = VectorXf::Constant(queries.rows(), negative_infinity<float>);
    VectorXf l = VectorXf::Zero(queries.rows());

    for_each_key_block(scoring, rows, k.shape().seq, block, [&](const Tile& tile, bool masked) {
      MatrixXf s = static_cast<float>(scoring.scale) * queries * tile.of_keys(k).transpose();
      adjust(scoring, tile, masked, 1, [&](Index i, Index j) -> float& { return s(i, j); });

      const VectorXf m_new = m.cwiseMax(s.rowwise().maxCoeff());
      const VectorXf from = m_new.unaryExpr(&finite_maximum);
      MatrixXf p = (s.colwise() - from).array().exp();
      if (masked) p = (s.array() == negative_infinity<float>).select(0.0F, p);  // Eigen's exp(-inf) is 1e-38
      const VectorXf a = (m - from).array().exp();

      l = a.cwiseProduct(l) + p.rowwise().sum();
      o = (a.asDiagonal() * o + p * tile.of_keys(v)).eval();
      m = m_new;
    });

    for (Index i = 0; i < o.rows(); ++i) {
      const float divisor = l(i) == 0 ? 1 : l(i);
      rows.of_queries(result.out.view()).row(i) = o.row(i) / divisor;
      result.lse.view()(rows.batch, rows.head, rows.first_query + i) = m(i) + std::log(l(i));
    }
  });
  return result;
}

}  // namespace ring_attention
