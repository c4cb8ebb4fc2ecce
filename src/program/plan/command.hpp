/// \file
/// `ring-attention plan`: what a model and a context need on machines that are not here.
#pragma once

#include "program/plan/options.hpp"

namespace ring_attention {

/// Prints the plan. One process is enough.
/// \throws InputError when no mesh is possible
void plan_command(const PlanOptions& options);

}  // namespace ring_attention
