/// \file
/// The products of a linear layer y = x w, forward and backward, by the kernel of an instruction set
/// (cpu/product_kernel.cpp). Another one rounds otherwise, as in attention. A row of y or dx has the same bits whichever rows
/// are multiplied with it.
///
/// An array `[batch, 1, tokens, width]` is a matrix of batch * tokens rows here. Nothing else of the model multiplies
/// matrices.
#pragma once

#include "model/gradient_sum.hpp"

namespace ring_attention::model {

/// y = x w. x `[.., n, in]`, w `[1, 1, in, out]`, y `[.., n, out]`
template <class T>
void multiply(View<const T> x, View<const T> w, View<T> y, Isa isa = best_isa());

/// forward: y = x w; so now dx += dy w^T.
template <class T>
void add_input_gradient(View<const T> grad_y, View<const T> w, View<T> grad_x, Isa isa = best_isa());
/// forward: y = x w; so now dw += x^T dy.
template <class T>
void add_weight_gradient(View<const T> x, View<const T> grad_y, const GradientSum<T>& grad_w,
                         const RowTiles& rows = {});

}  // namespace ring_attention::model
