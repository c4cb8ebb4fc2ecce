// The products of a warpgroup, wgmma.m64nNk16: matrices in shared memory and in registers.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <vector>

#include "emulator/machine.hpp"
#include "emulator/tensor_core.hpp"

namespace ring_attention::emulator {

constexpr unsigned warpgroup = 128;

// What all threads of a warpgroup pass to a wgmma: descriptors of the matrices in shared memory.
struct Operands {
  Half type;
  bool a_in_registers, a_by_columns, b_by_rows;
  unsigned count;  // results in each thread
  unsigned long long a, b;
  bool accumulate;
  friend bool operator==(const Operands&, const Operands&) = default;
};

// One wgmma.
struct Product {
  Operands operands;
  unsigned arrived = 0;
  std::array<float*, warpgroup> d = {};
  std::array<const unsigned*, warpgroup> registers = {};  // of a
};

// The products of one warpgroup. A thread does not wait at a wgmma. The product starts when all threads have called it.
struct Products {
  std::deque<Product> called_by_some;
  std::size_t started = 0;
  std::array<std::size_t, warpgroup> called = {};           // by each thread
  std::array<std::vector<std::size_t>, warpgroup> commits;  // how many it had called
  Waiting waiting;                                          // for the start of a product
  static std::string in_words(const void*) { return "for the start of a wgmma"; }
};
// Those of the running thread's warpgroup.
Products& products_of_warpgroup();

// The running thread calls a product, with its own result d and perhaps a in registers. The last thread of the
// warpgroup starts it as asynchronous work.
void call_product(const Operands& operands, float* d, const unsigned* registers);

// Bits 4-6 of an address are xored with bits 7-9.
inline unsigned swizzled(unsigned address) { return address ^ ((address >> 7U & 7U) << 4U); }

}  // namespace ring_attention::emulator
