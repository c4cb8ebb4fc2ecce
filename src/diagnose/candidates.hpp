/// \file
/// Which hypotheses are worth trying, and what each of them returns.
#pragma once

#include <map>
#include <tuple>

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// Single mistakes of a pass, in both directions of the ring where that matters, on top of `base`.
[[nodiscard]] std::vector<Explanation> singles(const std::vector<const Mistake*>& mistakes, bool backward,
                                               int ring, const Explanation& base = {});

/// All pairs of these that may explain the case which `search` looks at first.
[[nodiscard]] std::vector<Explanation> pairs(const std::vector<Explanation>& singles, const Search& search);

/// What was simulated once, for one type of numbers, is not simulated again for another. It outlives the searches.
class Simulations {
 public:
  /// out and lse of a forward.
  [[nodiscard]] Search::Simulate forward();
  /// dq, dk and dv of a backward, whose forward is explained by `of`.
  [[nodiscard]] Search::Simulate backward(const Explanation& of);

 private:
  /// Case, type, what was made, and of a backward whether it took the forward's own out and lse.
  using Key = std::tuple<const Evidence*, Precision, Hypothesis, bool>;
  using Known = std::map<Key, std::shared_ptr<const Arrays>>;
  using Simulated = std::function<Arrays(const Evidence&, const Explanation&, Precision)>;
  [[nodiscard]] static Search::Simulate remembering(Known& known, Simulated simulated);

  Known forwards_;
  std::map<Hypothesis, Known> backwards_;  // by their forward
};

/// Are the gradients the derivative of a wrong forward? Along a few directions, by differences.
[[nodiscard]] bool is_derivative(std::span<const Evidence> cases, const Explanation& forward,
                                 Precision precision);

}  // namespace ring_attention::diagnose
