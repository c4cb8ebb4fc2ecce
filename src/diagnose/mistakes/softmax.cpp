// The softmax of one step, and what the forward hands back.
#include <algorithm>
#include <cmath>

#include "diagnose/mistakes/edits.hpp"

namespace ring_attention::diagnose {
namespace {

/// The head that stands in the place of `head` when the all-to-all was not undone: ranks first, then their heads.
Index head_before_return(const Problem& problem, Index head) {
  const Index group = problem.job.ulysses, own = problem.the_case.heads / group;
  return head % group * own + head / group;
}

void permute_heads(const Problem& problem, Tensor<double>& array) {
  const Tensor<double> right = array.clone();
  for (Index head = 0; head < array.shape().heads; ++head)
    matrix(array.view(), 0, head) = matrix(right.view(), 0, head_before_return(problem, head));
}

/// [heads, tokens] of a rank, read as [tokens, heads].
void view_for_transpose(const Problem& problem, Arrays& arrays) {
  const Tensor<double> right = arrays[Array::out].clone();
  const Shape& shape = right.shape();
  for (int rank = 0; rank < problem.job.ranks; ++rank) {
    const std::vector<Index> tokens = positions(problem.job.tokens_of(rank, shape.seq));
    const Index count = std::ssize(tokens);
    for (Index i = 0; i < count * shape.heads; ++i) {  // a row of dim numbers, in the order of memory
      const Index from = tokens[static_cast<std::size_t>(i % count)],
                  to = tokens[static_cast<std::size_t>(i / shape.heads)];
      std::ranges::copy(right.view().row(0, i / count, from),
                        arrays[Array::out].view().row(0, i % shape.heads, to).begin());
    }
  }
}

void unguarded(Rules& rules) {
  rules.guarded = false;
  rules.factors = [](double m, double m_new, double m_merged) {
    const double old_factor = std::exp(m - m_merged), new_factor = std::exp(m_new - m_merged);
    return Factors{old_factor, old_factor, new_factor, new_factor};
  };
}

}  // namespace

std::vector<Edit> softmax_edits() {
  return {
      {"no-max",
       [](Rules& rules) {
         rules.maximum = [](double) { return 0.0; };
         rules.guarded = false;
       }},
      {"m-starts-0",
       [](Rules& rules) {
         rules.maximum = [](double m) { return std::max(m, 0.0); };
         rules.guarded = false;
       }},
      {"finite-start",
       [](Rules& rules) {
         rules.maximum = [](double m) { return std::max(m, -1e4); };
         rules.guarded = false;
       }},
      {"unguarded", unguarded, directed},
      {"unguarded-row",
       [](Rules& rules) {
         unguarded(rules);
         rules.skips_hidden_tiles = true;
       },
       directed},
      {"finite-mask-1e4", [](Rules& rules) { rules.hidden_score = -1e4; }},
      {"finite-mask", [](Rules& rules) { rules.hidden_score = -1e30; }},
      {"out-not-normalised", [](Rules& rules) { rules.normalised = false; }},
      {"lse-added",
       [](Rules& rules) {
         rules.returned_lse = [](const std::vector<RowState>& steps, double) {
           double sum = 0;
           for (const RowState& step : steps) sum += step.l > 0 ? step.lse() : 0;
           return sum;
         };
       }},
      {"lse-of-own-shard",
       [](Rules& rules) {
         rules.returned_lse = [](const std::vector<RowState>& steps, double) { return steps.front().lse(); };
       }},
      {"lse-of-last-step",
       [](Rules& rules) {
         rules.returned_lse = [](const std::vector<RowState>& steps, double) { return steps.back().lse(); };
       },
       directed},
      {"lse-is-max",
       [](Rules& rules) {
         rules.returned_lse = [](const std::vector<RowState>& steps, double) {
           return std::ranges::max(steps, {}, &RowState::m).m;
         };
       }},
      {"heads-not-returned",
       [](Rules& rules) {
         rules.after_forward.push_back([](const Problem& problem, Arrays& arrays) {
           permute_heads(problem, arrays[Array::out]);
           permute_heads(problem, arrays[Array::lse]);
         });
       }},
      {"heads-not-returned-backward",
       [](Rules& rules) {
         rules.after_backward.push_back([](const Problem& problem, const Turn&, Arrays& arrays) {
           permute_heads(problem, arrays[Array::dq]);
         });
       }},
      {"view-for-transpose", [](Rules& rules) { rules.after_forward.push_back(view_for_transpose); }},
  };
}

}  // namespace ring_attention::diagnose
