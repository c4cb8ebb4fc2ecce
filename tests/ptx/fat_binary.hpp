// Kernels by the address of their stub on the host.
#pragma once

#include "ptx/machine.hpp"

namespace ptx {

struct KernelStub {
  void* fat_binary = nullptr;
  std::string name;
  std::size_t dynamic_limit = std::size_t{48} * 1024;  // cudaFuncAttributeMaxDynamicSharedMemorySize
  Kernel* kernel = nullptr;
};

KernelStub* find_function(const void* host);
/// The kernel's PTX for the newest architecture that a GPU of this compute capability runs, or nullptr.
Kernel* kernel_of(KernelStub& function, int capability);

}  // namespace ptx
