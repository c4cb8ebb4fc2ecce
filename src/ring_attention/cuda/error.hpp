/// \file
/// Errors of CUDA: `check`, and those of core/error.hpp.
#pragma once

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/check.hpp"
