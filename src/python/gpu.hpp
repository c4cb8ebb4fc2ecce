/// \file
/// The calls of the extension module with arrays in the memory of a GPU.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>

#include "ring_attention/parallel/observer.hpp"

namespace ring_attention {
class GpuAttention;
}

namespace ring_attention::python {

/// What the GPU calls of some ranks keep, from the first one on.
struct GpuCalls {
  std::shared_ptr<GpuAttention> attention;
  std::function<void()> wait = [] {};
  std::function<void(const Observers&)> observe = [](const Observers&) {};  // outside of calls
};

/// Adds the functions of the GPU; in a build without CUDA only `has_gpu`, which is false.
void bind_gpu(pybind11::module_& module);

}  // namespace ring_attention::python
