// The sums of the tensor cores.
#pragma once

namespace ring_attention::emulator {

// c [rows][columns] += a [rows][16] b [16][columns]. `rows` is a multiple of 4 and `columns` of 8. Each sum is rounded to nearest after each
// addition, in the order of k, or truncated as options().truncated_sums says.
void add_product(float* c, const float* a, const float* b, unsigned rows, unsigned columns);

}  // namespace ring_attention::emulator
