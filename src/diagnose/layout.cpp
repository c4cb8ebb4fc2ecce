#include "diagnose/layout.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

/// Letters for extents, "BSHD"-like, of what the axes hold.
std::string axes_text(const std::vector<std::size_t>& axis_of, std::size_t axes) {
  std::string text;
  for (std::size_t at = 0; at < axes; ++at)
    for (std::size_t i = 0; i < axis_of.size(); ++i)
      if (axis_of[i] == at) text += (text.empty() ? "[" : ", ") + std::string(1, "HSD"[i]);
  return text + "]";
}

/// Where `wanted` are among `extents`: an order of the axes, the present one first. Axis 1, the tokens, may be longer by
/// fewer than `slack`.
std::optional<std::vector<std::size_t>> order_of(const std::vector<Index>& extents,
                                                 const std::vector<Index>& wanted, Index slack) {
  if (extents.size() != wanted.size()) return {};
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    bool fits = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Index extra = extents[order[i]] - wanted[i];
      fits = fits && extra >= 0 && extra < (i == 1 ? slack : 1);
    }
    if (fits) return order;
  } while (std::ranges::next_permutation(order).found);
  return {};
}

Tensor<double> transposed(const RawArray& raw, const std::vector<Index>& extents,
                          const std::vector<std::size_t>& order, const Shape& shape) {
  std::vector<Index> steps(extents.size(), 1);  // in memory
  for (std::size_t i = extents.size() - 1; i > 0; --i) steps[i - 1] = steps[i] * extents[i];
  Tensor<double> array(shape);
  for (Index head = 0; head < shape.heads; ++head)
    for (Index token = 0; token < shape.seq; ++token)
      for (Index column = 0; column < shape.dim; ++column) {
        const std::array index{head, token, column};
        Index at = 0;
        for (std::size_t i = 0; i < order.size(); ++i) at += index[i] * steps[order[i]];
        array.view()(0, head, token, column) = raw.elements[static_cast<std::size_t>(at)];
      }
  return array;
}

Tensor<double> summed_over_groups(const Tensor<double>& of_query_heads, Index kv_heads) {
  const Shape& shape = of_query_heads.shape();
  Tensor<double> sums({1, kv_heads, shape.seq, shape.dim});
  for (Index head = 0; head < shape.heads; ++head)
    matrix(sums.view(), 0, head / (shape.heads / kv_heads)) += matrix(of_query_heads.view(), 0, head);
  return sums;
}

}  // namespace

std::string shape_text(const std::vector<Index>& extents) {
  std::string text;
  for (const Index extent : extents) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
  return text.empty() ? "[]" : text + "]";
}

std::optional<Arranged> arranged(const Case& which, Array array, Index tokens, const RawArray& raw) {
  const Shape shape = which.shape_of(array).with_seq(tokens);
  std::vector<Index> extents = raw.extents;
  std::erase(extents, 1);
  const auto attempt = [&](Index heads) -> std::optional<Arranged> {
    std::vector<Index> wanted{heads, tokens, shape.dim};
    if (array == Array::lse) wanted.pop_back();
    const Shape found{1, heads, tokens, shape.dim};
    const Index slack = tokens < which.tokens ? tokens : which.tokens / 2;  // padding to equal shards
    for (const Index extra : {Index{1}, slack})
      if (const auto order = order_of(extents, wanted, extra)) {
        std::string says;
        if (!std::ranges::is_sorted(*order)) says = "axes are " + axes_text(*order, extents.size());
        if (extra > 1)
          says += (says.empty() ? "" : ", ") + std::string("rows behind the last token are cut off");
        return Arranged{transposed(raw, extents, *order, found), says};
      }
    return {};
  };
  if (auto found = attempt(shape.heads)) return found;
  if (std::ssize(extents) == 2 && array != Array::lse) {  // [S, H D]
    const auto row = std::ranges::find(extents, shape.heads * shape.dim);
    if (row == extents.end() - 1) {
      extents = {extents[0], shape.heads, shape.dim};
      if (auto found = attempt(shape.heads)) {
        found->says = "heads and columns are in one axis";
        return found;
      }
    }
  }
  if (array != Array::dk && array != Array::dv) return {};
  auto found = attempt(which.heads);
  if (!found) return {};
  found->array = summed_over_groups(found->array, which.kv_heads);
  found->says +=
      (found->says.empty() ? "" : ", ") + std::string("of every query head: summed over each group");
  return found;
}

Tensor<double> joined(const Problem& problem, const std::vector<Tensor<double>>& of_ranks) {
  const Index tokens = problem.the_case.tokens;
  Tensor<double> whole(of_ranks.front().shape().with_seq(tokens));
  for (int rank = 0; rank < problem.job.ranks; ++rank) {
    const Tensor<double>& shard = of_ranks[static_cast<std::size_t>(rank)];
    const std::vector<Index> here = positions(problem.job.tokens_of(rank, tokens));
    for (Index head = 0; head < whole.shape().heads; ++head)
      for (std::size_t row = 0; row < here.size(); ++row)
        matrix(whole.view(), 0, head).row(here[row]) =
            matrix(shard.view(), 0, head).row(static_cast<Index>(row));
  }
  return whole;
}

}  // namespace ring_attention::diagnose
