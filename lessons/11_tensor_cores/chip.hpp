// Lesson 11: the rates of the GPU, and the work of one score.
#pragma once

#include "common/lesson.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"  // the runtime

namespace ring_attention::tensor_cores {

// What the current GPU can do per second at its highest clock; zeros if that is not known.
struct Chip {
  int count = 0;
  double hertz = 0, tensor_flops = 0, exponentials = 0, fp32_flops = 0;
};

// Rates of one multiprocessor per clock, from NVIDIA's white papers on the A100 and the H100: dense 16-bit operations
// with fp32 sums, exponentials (special-function units), fp32 operations.
inline Chip chip() {
  struct Rates {
    int capability;
    double tensor, exponentials, fp32;
  };
  const cuda::DeviceTraits traits = cuda::traits_for({});
  int kilohertz = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, cuda::current_device()) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  for (const Rates& rates : {Rates{80, 2048, 16, 128}, Rates{90, 4096, 16, 256}}) {
    if (rates.capability != traits.compute_capability) continue;
    const double hertz = 1e3 * kilohertz, clocks = hertz * traits.multiprocessors;
    return {traits.multiprocessors, hertz, clocks * rates.tensor, clocks * rates.exponentials,
            clocks * rates.fp32};
  }
  return {};
}

/// The work of one score for each unit of a multiprocessor, and the limits of the GPU at its highest clock.
inline void show_roofline(Lesson& lesson, Index dim) {
  const Chip chip = ring_attention::tensor_cores::chip();
  lesson.say("  per score: " + std::to_string(4 * dim) +
             " operations on tensor cores, 1 exponential; per key and value: " + std::to_string(4 * dim) +
             " bytes in bf16");
  if (!(chip.tensor_flops > 0)) {
    lesson.say("  the rates of this GPU are not known to the program");
    return;
  }
  const double exp_flops = chip.exponentials * 4 * static_cast<double>(dim);
  Table table({"limit by", "TFLOP/s"});
  table.row({"tensor cores, 16-bit types", format("%.0f", chip.tensor_flops / 1e12)});
  table.row({"exponentials, one per score", format("%.0f", exp_flops / 1e12)});
  table.row({"fp32 multiply-adds", format("%.0f", chip.fp32_flops / 1e12)});
  lesson.print("limits", table);
  lesson.say(format("  %d multiprocessors at %.2f GHz; in sequence the first two allow %.0f TFLOP/s",
                    chip.count, chip.hertz / 1e9, 1e-12 / (1 / chip.tensor_flops + 1 / exp_flops)));
}

}  // namespace ring_attention::tensor_cores
