/// \file
/// RMSNorm (Zhang, Sennrich, arXiv 1910.07467), forward and backward.
#pragma once

#include "model/gradient_sum.hpp"

namespace ring_attention::model {

/// y = x r g, with r = 1 / sqrt(mean(x^2) + 1e-6) of a row. y may be x.
/// \param x, y  `[batch, 1, tokens, width]`
/// \param gain  `[1, 1, 1, width]`
template <class T>
void rms_norm(View<const T> x, View<const T> gain, View<T> y);

/// Adds the gradients of rms_norm to dx and dg.
template <class T>
void add_rms_norm_gradient(View<const T> x, View<const T> gain, View<const T> grad_y, View<T> grad_x,
                           const GradientSum<T>& grad_gain, const RowTiles& rows = {});
}  // namespace ring_attention::model
