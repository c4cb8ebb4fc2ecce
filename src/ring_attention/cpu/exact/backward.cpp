#include "ring_attention/cpu/exact/backward.hpp"

#include <algorithm>

#include "ring_attention/attention/row_dot.hpp"
#include "ring_attention/cpu/exact/kernel_term.hpp"
#include "ring_attention/cpu/exact/tiles.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

SameBitsBackward::SameBitsBackward(Scoring scoring, const CpuOptions& options, Index most_keys)
    : scoring_(std::move(scoring)),
      options_(options),
      most_keys_(most_keys),
      query_tiling_(options.same_bits, scoring_.mask.documents, scoring_.mask.offset),
      key_tiling_(options.same_bits, scoring_.mask.documents),
      kernels_(kernels<float>(options.isa)) {}

/// What a thread of the fast engine needs: the panels of a tile of queries, one after the other; dK and dV of a tile of keys;
/// and the rows that a panel stores.
struct SameBitsBackward::Panels {
  Panels(const SameBitsBackward& of, const cpu::HeadWidths& widths)
      : lanes(of.kernels_.exact_backward.tile(widths).queries),
        count((longest(of.queries_) + lanes - 1) / lanes),
        each(static_cast<Index>((of.kernels_.exact_backward.workspace(widths) + 15) / 16 * 16)),
        keys(std::min(of.options_.same_bits, of.most_keys_) * widths.k),
        values(std::min(of.options_.same_bits, of.most_keys_) * widths.v),
        dim(widths.k) {}

  [[nodiscard]] static Index longest(const std::vector<TokenTile>& tiles) {
    Index tokens = 1;
    for (const TokenTile& tile : tiles) tokens = std::max(tokens, tile.tokens.count);
    return tokens;
  }
  [[nodiscard]] Index elements() const {
    return count * each + keys + values + lanes * ExactFormat{dim}.words();
  }
  Index lanes, count, each, keys, values, dim;
};

void SameBitsBackward::begin(const BackwardInputs<float>& forward, const TokenRanges& ranges) {
  forward.require_queries(ranges);
  forward_ = forward;
  intervals_ = cpu::QueryIntervals(scoring_.mask, ranges);
  queries_ = tiles_of(ranges, query_tiling_);
  key_tiles_ = 0;
  grad_q_ = ExactRows(forward.q.shape());
  grad_bias_ = Tensor<float>(forward.bias.shape());
  delta_ = row_dot(forward.grad_out, forward.out, forward.grad_lse);
  workspace_ =
      cpu::workspaces<float>(options_.threads, static_cast<cpu::Size>(Panels(*this, widths()).elements()));
}

void SameBitsBackward::accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                                  const Progress& progress) {
  const Shape &q = forward_.q.shape(), &k = kv.k.shape(), &bias = forward_.bias.shape();
  const Index group = require_keys(forward_.shapes(), kv), pairs = q.batch * k.heads;
  for (const auto& [sums, dim] : {std::pair(gradient.k, k.dim), std::pair(gradient.v, kv.v.shape().dim)})
    require(
        sums.shape().dim == ExactFormat{dim}.words() || sums.shape().dim == ExactFormat{dim, true}.words(),
        "SameBitsBackward: dK and dV are rows of exact sums");
  const std::vector<TokenTile> keys = tiles_of(kv.ranges, key_tiling_);
  key_tiles_ += std::ssize(keys) * intervals_.parts();  // an interval of a tile is a term of dQ
  if (key_tiles_ > ExactFormat::most_terms) grad_q_.widen();

  // With fewer pairs of (batch, KV head) than threads, each is cut into parts of queries and of keys. In round t part p of
  // the keys meets part p + t of the queries: no two tasks add to the same rows, and, as in a ring, all meet all. A bias that
  // broadcasts has one order of batches and heads, so its pairs come one after the other.
  const bool in_order = forward_.bias.size() > 0 && (bias.batch < q.batch || bias.heads < q.heads);
  const Index together = in_order ? 1 : std::max<Index>(pairs, 1);
  const Index parts = (options_.threads + together - 1) / together;
  const auto part_of = [&](const std::vector<TokenTile>& tiles, Index part) {
    const auto [begin, end] = piece_of(std::ssize(tiles), static_cast<int>(part), static_cast<int>(parts));
    return std::span(tiles).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  for (Index first = 0; first < pairs; first += together)
    for (Index round = 0; round < parts; ++round)
      for_each_task(together * parts, options_.threads, [&](Index index, int worker) {
        const Index pair = first + index / parts, part = index % parts;
        for (Index in_group = 0; in_group < group; ++in_group)
          for (const TokenTile& queries : part_of(queries_, (part + round) % parts)) {
            const Task task{pair / k.heads,      pair % k.heads * group + in_group,
                            pair % k.heads,      queries,
                            part_of(keys, part), worker};
            differentiate(task, kv, gradient, worker == 0 ? progress : Progress());
            if (progress && worker == 0) progress();
          }
      });
}

namespace {

/// Adds a term to each of the rows of a tile.
void add_terms(const cpu::AddExactTerms& add, const View<float>& sums, Index batch, Index head,
               const TokenTile& tile, Index dim, const float* terms) {
  const Index words = sums.shape().dim;
  const ExactFormat format{dim, words != ExactFormat{dim}.words()};
  add_exact_terms(add, format, sums.row(batch, head, tile.first).data(), tile.tokens.count, terms);
}

}  // namespace

void SameBitsBackward::differentiate(const Task& task, const KeyValue<float>& kv,
                                     const KeyValueGradient<float>& gradient, const Progress& progress) {
  const auto& [batch, head, kv_head, queries, keys, worker] = task;
  const Index dim = kv.k.shape().dim, value_dim = kv.v.shape().dim;
  const Panels panels(*this, widths());
  float* const workspace = workspace_.view().row(0, 0, worker).data();
  float* const grad_k = workspace + panels.count * panels.each;
  float* const grad_v = grad_k + panels.keys;
  float* const stored = grad_v + panels.values;
  const cpu::BackwardKernel<float>& kernel = kernels_.exact_backward;

  struct Panel {
    TokenTile queries;
    cpu::GradientRows<float> rows;
    float* workspace;
    Index terms = 0;
  };
  std::vector<Panel> all;
  for (Index i = 0; i < queries.tokens.count; i += panels.lanes) {
    const TokenTile own{queries.tokens.slice(i, std::min(panels.lanes, queries.tokens.count - i)),
                        queries.first + i};
    all.push_back(
        {own,
         {static_cast<int>(own.tokens.count), widths().k, widths().v, static_cast<float>(scoring_.scale),
          forward_.q.row(batch, head, own.first).data(), forward_.grad_out.row(batch, head, own.first).data(),
          &forward_.lse(batch, head, own.first), &delta_.view()(batch, head, own.first), stored},
         workspace + std::ssize(all) * panels.each});
  }
  const auto store = [&](Panel& panel) {
    kernel.store(panel.rows, panel.workspace);
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): as above
    merge_rows(grad_q_, batch, head, panel.queries, stored, ExactFormat{dim}.words());
    panel.terms = 0;
  };
  cpu::Lanes<float> lanes;
  for (const TokenTile& tile : keys) {
    bool seen = false;
    for (Panel& panel : all)
      for (int part = 0; part < intervals_.parts(); ++part) {
        if (!lanes.look(scoring_, intervals_, batch, head, {panel.queries.tokens, panel.queries.first}, part,
                        tile.tokens, kv.k.row(batch, kv_head, tile.first).data(),
                        kv.v.row(batch, kv_head, tile.first).data(), forward_.bias, grad_bias_.view()))
          continue;
        if (!std::exchange(seen, true)) {
          require(tile.tokens.count * dim <= panels.keys && tile.tokens.count * value_dim <= panels.values,
                  "SameBitsBackward: a tile of keys is larger than its memory");
          std::fill_n(grad_k, tile.tokens.count * dim, 0.0F);
          std::fill_n(grad_v, tile.tokens.count * value_dim, 0.0F);
        }
        if (panel.terms++ == 0) kernel.load(panel.rows, panel.workspace);
        kernel.attend(lanes.span(), panel.rows, grad_k, grad_v, panel.workspace);
        if (panel.terms == ExactFormat::terms_at_once) store(panel);
      }
    if (!seen) continue;
    add_terms(kernels_.add_exact_terms, gradient.k, batch, kv_head, tile, dim, grad_k);
    add_terms(kernels_.add_exact_terms, gradient.v, batch, kv_head, tile, value_dim, grad_v);
    if (progress) progress();
  }
  for (Panel& panel : all)
    if (panel.terms > 0) store(panel);
}

}  // namespace ring_attention
