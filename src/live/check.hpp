/// \file
/// `check`: the results of a run in the page against the dense reference in double, as `ring-attention run --check` does.
#pragma once

#include <functional>
#include <map>

#include "live/choice.hpp"
#include "ring_attention/core/compare.hpp"

namespace ring_attention::live {

/// q, k, v, dout, out, lse, dq, dk, dv by these names: [1, heads, tokens, dim]. Without a backward the last three are missing.
using Arrays = std::map<std::string, Tensor<float>>;

/// Is told of each result its name, the verdict, the bound of an element, and how many of its tokens are compared.
using Tell = std::function<void(const char* name, const Comparison&, double bound, Index tokens)>;
/// \param arrays  of all ranks, by positions
void check(const Choice& choice, const Arrays& arrays, const Tell& tell);

}  // namespace ring_attention::live
