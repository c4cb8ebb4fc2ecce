#include "python/gpu.hpp"

namespace ring_attention::python {

void bind_gpu(pybind11::module_& module) { module.attr("has_gpu") = false; }

}  // namespace ring_attention::python
