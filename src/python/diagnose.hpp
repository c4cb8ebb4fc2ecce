/// \file
/// The part of the module that diagnoses the results of another ring.
#pragma once

#include <pybind11/pybind11.h>

namespace ring_attention::python {

/// Adds `Cases` to the module.
void bind_diagnose(pybind11::module_& module);

}  // namespace ring_attention::python
