/// \file
/// The last kernel of the forward.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// In each row and in place: o becomes out = o / l, and m becomes lse = log 2 * m + log l. A row with l = 0 has seen no
/// key: out = 0 and lse = -inf for any m.
/// \param o  [rows][dim]
/// \param m,l  [rows]
void finish_rows(float* o, float* m, const float* l, Index rows, int dim, StreamHandle stream);

}  // namespace ring_attention::cuda
