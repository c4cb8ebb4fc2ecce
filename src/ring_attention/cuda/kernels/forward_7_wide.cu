/// \file
/// Kernel 7: tiles of 176 keys, for a dim of 128 without a mask. What changed since kernel 6: only the size of a tile. The
/// work for each tile besides its products (barriers, the maximum of a row, turns) is done for 176 keys and not for 128.
///
///                               kernel 6    kernel 7   of
///      shared memory: Q         2 x 32 KB   32 KB
///                     K, V      128 KB      176 KB
///                     sum       197 KB      210 KB     227 KB
///      registers: s, p, o       160         196        240
///
/// Q has one buffer, because two do not fit. The consumers release it after their last softmax, so the next Q arrives
/// during their last PV and their stores. Under a causal mask tiles of 128 keys have less work that is masked.
///
/// Source: FlashAttention-3, whose code has these tiles for a dim of 128 without a mask (tile_size.h).
///
/// Expects a dim of at most 128 that is a multiple of 8. A small dim costs as much as 128.
#include "ring_attention/cuda/kernels/common/hopper_persistent.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int columns = 128, q_stages = 1, keys = 176;

void attend(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  if (type == Type::bf16)
    attend_persistent<__nv_bfloat16, columns, q_stages, keys>(task, type, device, stream);
  else
    attend_persistent<__half, columns, q_stages, keys>(task, type, device, stream);
}

}  // namespace

extern const ForwardKernel forward_7_wide{.number = 7,
                                          .name = "wide",
                                          .computes = "kernel 6 with tiles of 176 keys",
                                          .deterministic = true,
                                          .takes = takes<PersistentMemory<columns, q_stages, keys>>,
                                          .launch = attend,
                                          .automatic = false};

}  // namespace ring_attention::cuda
