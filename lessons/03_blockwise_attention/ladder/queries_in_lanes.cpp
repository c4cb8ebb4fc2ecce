// Step 3: plain loops over arrays in which queries lie side by side.
//
// Nothing here names a vector. The innermost loop always runs over the queries of a tile, a constant number of them
// in contiguous memory, so that the compiler can give each query a SIMD lane.

#include <bit>
#include <cstdint>
#include <numbers>

#include "ladder.hpp"
#include "tiles.hpp"

namespace ring_attention {

using namespace ladder_detail;

namespace {

constexpr Index lanes = 64;  // queries in a tile
constexpr Index block = 64;  // keys
constexpr auto log2_e = std::numbers::log2e_v<float>;

/// Powers of two: s and m are in units of log 2, so that e^{s - m} is 2^{s - m}.
struct Workspace {
  explicit Workspace(Index dim) : qt({1, 1, dim, lanes}), ot({1, 1, dim, lanes}), p({1, 1, block, lanes}) {}
  Tensor<float> qt;              // [dim][lanes], times scale * log2 e
  Tensor<float> ot;              // [dim][lanes], not normalised
  Tensor<float> p;               // [block][lanes], scores and then 2^{s - m}
  alignas(64) float m[lanes]{};  // in units of log 2
  alignas(64) float l[lanes]{};
  alignas(64) float a[lanes]{};  // 2^{m - m'}
};

/// 2^x for x < 127, and 0 for -inf: the integer part goes into the exponent, a polynomial gives the rest.
inline float power_of_two(float x) {
  constexpr float magic = 12582912.0F + 127.0F;
  x = x < -127.0F ? -127.0F : x;
  const float shifted = x + magic;
  const float power = std::bit_cast<float>(std::bit_cast<std::int32_t>(shifted) << 23);
  const float f = x - (shifted - magic);
  float p = f * 1.326472670e-3F + 9.671512677e-3F;
  p = p * f + 5.550733745e-2F;
  p = p * f + 2.402224208e-1F;
  p = p * f + 6.931469776e-1F;
  p = p * f + 1.0F;
  return p * power;
}

/// c[r][i] = start[r][i] + sum_n a(r, n) b[n][i] for `rows` rows at once, where a(r, n) = a[r * row + n * column].
template <int rows>
void multiply(float* c, const float* a, Index row, Index column, const float* b, Index n) {
  float sum[rows][lanes];
  for (int r = 0; r < rows; ++r)
    for (Index i = 0; i < lanes; ++i) sum[r][i] = c[r * lanes + i];
  for (Index j = 0; j < n; ++j)
    for (int r = 0; r < rows; ++r)
      for (Index i = 0; i < lanes; ++i) sum[r][i] += a[r * row + j * column] * b[j * lanes + i];
  for (int r = 0; r < rows; ++r)
    for (Index i = 0; i < lanes; ++i) c[r * lanes + i] = sum[r][i];
}

/// The same for any number of rows: four at a time, then one.
void multiply(Index rows, float* c, const float* a, Index row, Index column, const float* b, Index n) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) multiply<4>(c + r * lanes, a + r * row, row, column, b, n);
  for (; r < rows; ++r) multiply<1>(c + r * lanes, a + r * row, row, column, b, n);
}

void load(const Tile& tile, View<const float> q, float scale, Workspace& w) {
  const auto rows = tile.of_queries(q);
  w.qt.fill(0);
  w.ot.fill(0);
  for (Index i = 0; i < rows.rows(); ++i)
    for (Index c = 0; c < rows.cols(); ++c) w.qt.data()[c * lanes + i] = scale * log2_e * rows(i, c);
  std::fill_n(w.m, lanes, negative_infinity<float>);
  std::fill_n(w.l, lanes, 0.0F);
}

/// m' = max(m, s), p = 2^{s - m'}, a = 2^{m - m'}, l = a l + sum p. No loop over the queries looks at two of them.
void exponentiate(Index keys, Workspace& w) {
  float* const p = w.p.data();
  alignas(64) float m[lanes], from[lanes];
  std::copy_n(w.m, lanes, m);
  for (Index j = 0; j < keys; ++j)
    for (Index i = 0; i < lanes; ++i) m[i] = m[i] < p[j * lanes + i] ? p[j * lanes + i] : m[i];
  for (Index i = 0; i < lanes; ++i) from[i] = finite_maximum(m[i]);
  for (Index i = 0; i < lanes; ++i) w.a[i] = power_of_two(w.m[i] - from[i]);
  for (Index i = 0; i < lanes; ++i) w.l[i] *= w.a[i];
  for (Index j = 0; j < keys; ++j)
    for (Index i = 0; i < lanes; ++i) {
      p[j * lanes + i] = power_of_two(p[j * lanes + i] - from[i]);
      w.l[i] += p[j * lanes + i];
    }
  std::copy_n(m, lanes, w.m);
}

void store(const Tile& tile, const Workspace& w, AttentionResult<float>& result) {
  const auto out = tile.of_queries(result.out.view());
  for (Index i = 0; i < tile.queries.count; ++i) {
    const float divisor = w.l[i] == 0 ? 1 : w.l[i];
    for (Index c = 0; c < out.cols(); ++c)
      result.out.view()(tile.batch, tile.head, tile.first_query + i, c) =
          w.ot.data()[c * lanes + i] / divisor;
    result.lse.view()(tile.batch, tile.head, tile.first_query + i) =
        w.m[i] * std::numbers::ln2_v<float> + std::log(w.l[i]);
  }
}

}  // namespace

AttentionResult<float> queries_in_lanes(View<const float> q, View<const float> k, View<const float> v,
                                        const Scoring& scoring, int threads) {
  const Index dim = q.shape().dim;
  AttentionResult<float> result{Tensor<float>(q.shape()), Tensor<float>(q.shape().per_row())};
  std::vector<Workspace> workspaces;
  workspaces.reserve(static_cast<std::size_t>(threads));
  for (int worker = 0; worker < threads; ++worker) workspaces.emplace_back(dim);

  for_each_query_tile(q.shape(), k.shape(), v.shape(), lanes, threads, [&](const Tile& rows, int worker) {
    Workspace& w = workspaces[static_cast<std::size_t>(worker)];
    load(rows, q, static_cast<float>(scoring.scale), w);
    for_each_key_block(scoring, rows, k.shape().seq, block, [&](const Tile& tile, bool masked) {
      const Index keys = tile.keys.count;
      std::fill_n(w.p.data(), keys * lanes, 0.0F);
      multiply(keys, w.p.data(), tile.of_keys(k).data(), dim, 1, w.qt.data(), dim);
      adjust(scoring, tile, masked, std::numbers::log2e,
             [&](Index i, Index j) -> float& { return w.p.data()[j * lanes + i]; });
      exponentiate(keys, w);
      for (Index c = 0; c < dim; ++c)
        for (Index i = 0; i < lanes; ++i) w.ot.data()[c * lanes + i] *= w.a[i];
      multiply(dim, w.ot.data(), tile.of_keys(v).data(), 1, dim, w.p.data(), keys);
    });
    store(rows, w, result);
  });
  return result;
}

}  // namespace ring_attention
