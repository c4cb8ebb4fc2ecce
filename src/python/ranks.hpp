/// \file
/// The part of the module that uses MPI: the ranks of the job, the ring, and arrays that travel.
#pragma once

#include "python/arrays.hpp"
#include "ring_attention/attention/engine.hpp"

namespace ring_attention::python {

/// Adds its functions to the module.
void bind_ranks(py::module_& module);

/// (dq, dk, dv, dbias, [dsink ...]); dbias is empty without a bias
template <class T>
[[nodiscard]] py::tuple python_gradients(Gradients<T>&& gradients) {
  return py::make_tuple(Array(std::move(gradients.q)), Array(std::move(gradients.k)),
                        Array(std::move(gradients.v)), Array(std::move(gradients.bias)), gradients.sinks);
}

}  // namespace ring_attention::python
