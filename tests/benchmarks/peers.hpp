// The libraries that the kernels are measured against. Those that were not found when this was built are absent.
#pragma once

#include <functional>

#include "benchmarks/dense.hpp"

namespace ring_attention {

/// c = a b for n x n matrices of T, float or double, with OpenBLAS, ready to be called; empty without OpenBLAS.
template <class T>
[[nodiscard]] std::function<void()> openblas_gemm(Index n, int threads);

/// matmul, softmax, matmul with oneDNN, ready to be called; empty without oneDNN.
[[nodiscard]] std::function<void()> onednn_attention(const DenseProblem& problem, int threads);

/// "OpenBLAS 0.3.21, oneDNN 2.6.3": those that are here.
[[nodiscard]] std::string peer_versions();

}  // namespace ring_attention
