/// \file
/// Which hypotheses are worth trying, and what each of them returns.
#pragma once

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// Single mistakes of a pass, in both directions of the ring where that matters, on top of `base`.
[[nodiscard]] std::vector<Explanation> singles(const std::vector<const Mistake*>& mistakes, bool backward,
                                               int ring, const Explanation& base = {});

/// All pairs of these, of which both show in the case that `search` looks at first, or one explains it alone.
[[nodiscard]] std::vector<Explanation> pairs(const std::vector<Explanation>& singles, const Search& search);

/// out and lse of a forward.
[[nodiscard]] Arrays forward_arrays(const Evidence& one, const Explanation& explanation, Precision precision);

/// dq, dk and dv of a backward, whose forward is explained by `forward`.
[[nodiscard]] Search::Simulate backward_of(const Explanation& forward);

/// Are the gradients the derivative of a wrong forward? Along a few directions, by differences.
[[nodiscard]] bool is_derivative(std::span<const Evidence> cases, const Explanation& forward,
                                 Precision precision);

}  // namespace ring_attention::diagnose
