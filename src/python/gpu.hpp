/// \file
/// The calls of the extension module with arrays in the memory of a GPU.
#pragma once

#include <pybind11/pybind11.h>

namespace ring_attention::python {

/// Adds the functions of the GPU; in a build without CUDA only `has_gpu`, which is false.
void bind_gpu(pybind11::module_& module);

}  // namespace ring_attention::python
