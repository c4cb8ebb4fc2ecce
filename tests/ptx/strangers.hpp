// Launches of strangers.cu. `right`: without the mistake. All arrays are on the device.
#pragma once

namespace ring_attention::test {

void launch_sum(const float* from, float* to, bool right);   // 64 numbers
void launch_copy(const float* from, float* to, bool right);  // 256 numbers
void launch_product(const void* a, const void* b, float* d,
                    bool right);  // bf16: 64 x 64 by 8 x 64 transposed

}  // namespace ring_attention::test
