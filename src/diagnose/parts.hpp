/// \file
/// `parts_of`: how often an array counts the part that each pair of ranks contributes. For results that no known mistake
/// explains, this says what they are made of.
#pragma once

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// Row r of out, dq, dk or dv is the sum over ranks o of factor(r, o) times the part that the pair (r, o) contributes to
/// right results: for out and dq of the queries of r and the keys of o, for dk and dv the other way round.
struct Parts {
  Eigen::MatrixXd factors;  ///< NaN where the pair contributes nothing
  double left = 1;          ///< what no factors explain: the norm of the rest over the norm of the array
};

/// The factors of least squares. \pre the array is there, and is not lse
[[nodiscard]] Parts parts_of(const Evidence& one, Array array);

}  // namespace ring_attention::diagnose
