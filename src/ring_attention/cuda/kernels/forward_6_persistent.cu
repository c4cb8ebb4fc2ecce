/// \file
/// Kernel 6: persistent blocks, one per multiprocessor, each of which computes many tiles. What changed since kernel 5: a
/// block starts its next tile of queries before it has finished the last one. Its producer copies the next Q and its
/// visibility and continues with K and V, while the consumers store o. Q and its visibility have two buffers.
/// hopper_persistent.cuh implements it.
///
/// Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_persistent.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int q_stages = 2;

void attend(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    attend_persistent<T, columns, q_stages, tile_keys>(task, type, device, stream);
  });
}

}  // namespace

extern const ForwardKernel forward_6_persistent{6,
                                                "persistent",
                                                "a block per multiprocessor takes tile after tile",
                                                true,
                                                takes<PersistentMemory<128, q_stages, tile_keys>>,
                                                attend};

}  // namespace ring_attention::cuda
