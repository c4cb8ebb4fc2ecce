/// \file
/// A ring of ranks, simulated: what it hands back under given rules, right or wrong.
///
/// No rank runs and no message is sent: all tiles are computed here, in the order of the steps, densely and in double.
/// Ulysses is a ring of fewer ranks, whose heads may be mixed up.
#pragma once

#include "diagnose/rules.hpp"

namespace ring_attention::diagnose {

/// A forward and what its backward may need of it.
struct Forward {
  Arrays arrays;  ///< out and lse
  /// The normalised out [slots, dim] and the lse of each step, by rank, step and head.
  struct Piece {
    Matrix<double> out;
    Vector<double> lse;
  };
  std::vector<std::vector<std::vector<Piece>>> pieces;
};

/// \param precision  of the code: numbers that it would store in that type are rounded to it
[[nodiscard]] Forward simulate_forward(const Problem& problem, const Rules& rules,
                                       Precision precision = Precision::float64);

/// dq, dk and dv of a backward that takes out and lse from `given`. Its pieces are those of the user's forward.
[[nodiscard]] Arrays simulate_backward(const Problem& problem, const Rules& rules, const Forward& given,
                                       Precision precision = Precision::float64);

}  // namespace ring_attention::diagnose
