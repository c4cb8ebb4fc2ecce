/// \file
/// `row_dot`: delta, which the derivative of a softmax subtracts.
#pragma once

#include <optional>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// delta = rowsum(dO * O) - dlse, [batch, heads, seq, 1]. The product equals the sum over all keys of P * dP that the
/// derivative of a softmax subtracts: sum_j P_ij dP_ij = sum_j P_ij dO_i.V_j = dO_i.O_i. And dlse_i / ds_ij = P_ij.
template <class T>
[[nodiscard]] Tensor<T> row_dot(View<const T> grad_out, View<const T> out,
                                std::optional<View<const T>> grad_lse = {});

}  // namespace ring_attention
