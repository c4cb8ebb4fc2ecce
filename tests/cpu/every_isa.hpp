// Runs a check with the kernels of every instruction set that this machine has.
#pragma once

#include <gtest/gtest.h>

#include "ring_attention/cpu/isa.hpp"

namespace ring_attention::test {

/// \param visit  visit(isa); a failure names the instruction set
template <class Visit>
void for_each_isa(Visit visit) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(std::string("instruction set ") + name_of(isa));
    visit(isa);
  }
}

}  // namespace ring_attention::test
