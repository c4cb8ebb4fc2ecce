// Three kernels that are not the project's, each right or with one mistake: the interpreter has to tell them apart.
#include "ptx/strangers.hpp"

#include <cuda_bf16.h>

namespace ring_attention::test {
namespace {

__device__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// The sum of 64 numbers by shuffles. The mistake: no barrier before warp 0 reads what warp 1 wrote.
__global__ void sum(const float* from, float* to, bool right) {
  __shared__ float of_warp[2];
  float x = from[threadIdx.x];
  for (int d = 16; d > 0; d /= 2) x += __shfl_down_sync(0xffffffffU, x, d);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  if (right) __syncthreads();
  if (threadIdx.x == 0) *to = of_warp[0] + of_warp[1];
}

/// Copies 1024 bytes to shared memory by TMA and back by threads. The mistake: the threads do not wait.
__global__ void copy(const float* from, float* to, bool right) {
  __shared__ alignas(128) float data[256];
  __shared__ alignas(8) unsigned long long barrier;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(shared_address(&barrier))
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
            shared_address(data)),
        "l"(from), "r"(shared_address(&barrier))
        : "memory");
  }
  if (right) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
            shared_address(&barrier))
        : "memory");
  }
  for (unsigned i = threadIdx.x; i < 256; i += 64) to[i] = data[i];
}

/// D = A B^T of 64 x 64 and 8 x 64 numbers by wgmma, both with 128-byte swizzle. The mistake: it does not wait for it.
__global__ void product(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d, bool right) {
  __shared__ alignas(1024) __nv_bfloat16 shared_a[64 * 64], shared_b[8 * 64];
  const auto place = [](unsigned row, unsigned column) {
    return row * 64 + ((column / 8 ^ row % 8) * 8) + column % 8;
  };
  for (unsigned i = threadIdx.x; i < 64 * 64; i += 128) shared_a[place(i / 64, i % 64)] = a[i];
  for (unsigned i = threadIdx.x; i < 8 * 64; i += 128) shared_b[place(i / 64, i % 64)] = b[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float r[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (unsigned k = 0; k < 4; ++k) {
    const auto descriptor = [k](const void* p) {
      return (shared_address(p) + 32 * k) >> 4U | 1ULL << 16U | 64ULL << 32U | 1ULL << 62U;
    };
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3])
        : "l"(descriptor(shared_a)), "l"(descriptor(shared_b)));
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (right) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i)
    d[(warp * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = r[i] + 0.0F;
}

}  // namespace

void launch_sum(const float* from, float* to, bool right) { sum<<<1, 64>>>(from, to, right); }
void launch_copy(const float* from, float* to, bool right) { copy<<<1, 64>>>(from, to, right); }
void launch_product(const void* a, const void* b, float* d, bool right) {
  product<<<1, 128>>>(static_cast<const __nv_bfloat16*>(a), static_cast<const __nv_bfloat16*>(b), d, right);
}

}  // namespace ring_attention::test
