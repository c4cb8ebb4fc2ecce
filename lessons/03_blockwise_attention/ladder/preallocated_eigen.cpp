// Step 2: the same, without a new matrix anywhere in the loop.

#include "ladder.hpp"
#include "tiles.hpp"

namespace ring_attention {

using namespace ladder_detail;

namespace {

constexpr Index query_rows = 256, key_block = 256;

/// A tile of one thread, row-major, taken once.
struct Workspace {
  Matrix<float> q, s, o;
  Vector<float> m, l;
};

/// p = e^{s - m'} in place, row by row; l and o move to the new maximum.
void exponentiate(Workspace& w, bool masked) {
  for (Index i = 0; i < w.s.rows(); ++i) {
    auto s = w.s.row(i).array();
    const float m = std::max(w.m(i), s.maxCoeff());
    const float from = finite_maximum(m);
    const float a = rescale(w.m(i), from);
    if (masked)
      for (Index j = 0; j < w.s.cols(); ++j) w.s(i, j) = rescale(w.s(i, j), from);
    else
      s = (s - from).exp();
    w.l(i) = a * w.l(i) + s.sum();
    w.o.row(i) *= a;
    w.m(i) = m;
  }
}

}  // namespace

AttentionResult<float> preallocated_eigen(View<const float> q, View<const float> k, View<const float> v,
                                          const Scoring& scoring, int threads) {
  AttentionResult<float> result{Tensor<float>(q.shape()), Tensor<float>(q.shape().per_row())};
  std::vector<Workspace> workspaces(static_cast<std::size_t>(threads));
  for_each_query_tile(
      q.shape(), k.shape(), v.shape(), query_rows, threads, [&](const Tile& rows, int worker) {
        Workspace& w = workspaces[static_cast<std::size_t>(worker)];
        w.q = static_cast<float>(scoring.scale) * rows.of_queries(q);
        w.o.setZero(w.q.rows(), w.q.cols());
        w.m.setConstant(w.q.rows(), negative_infinity<float>);
        w.l.setZero(w.q.rows());

        for_each_key_block(scoring, rows, k.shape().seq, key_block, [&](const Tile& tile, bool masked) {
          w.s.resize(w.q.rows(), tile.keys.count);
          w.s.noalias() = w.q * tile.of_keys(k).transpose();
          adjust(scoring, tile, masked, 1, [&](Index i, Index j) -> float& { return w.s(i, j); });
          exponentiate(w, masked);
          w.o.noalias() += w.s * tile.of_keys(v);
        });

        for (Index i = 0; i < w.o.rows(); ++i) {
          rows.of_queries(result.out.view()).row(i) = w.o.row(i) / (w.l(i) == 0 ? 1 : w.l(i));
          result.lse.view()(rows.batch, rows.head, rows.first_query + i) = w.m(i) + std::log(w.l(i));
        }
      });
  return result;
}

}  // namespace ring_attention
