/// \file
/// `Processor`: who computes the calls of ring_attention.hpp on this rank.
#pragma once

#include <memory>
#include <type_traits>

#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/parallel/device.hpp"

namespace ring_attention {

/// A device for each type of numbers. cores() makes one; same_bits() (parallel/same_bits_processor.hpp), kernel()
/// (parallel/function_device.hpp) and observed() (observed_call.hpp) make others.
struct Processor {
  std::shared_ptr<const Device<float>> floats;    ///< null: it computes with doubles only
  std::shared_ptr<const Device<double>> doubles;  ///< null: it computes with floats only

  template <class T>
  [[nodiscard]] const std::shared_ptr<const Device<T>>& of() const {
    if constexpr (std::is_same_v<T, float>)
      return floats;
    else
      return doubles;
  }
};

/// The kernels of the library on the cores of this machine.
/// \param threads  of this rank; any number gives the same bits  \param isa  another one rounds differently
[[nodiscard]] Processor cores(int threads = 1, Isa isa = best_isa());

}  // namespace ring_attention
