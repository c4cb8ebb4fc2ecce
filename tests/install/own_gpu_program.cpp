// A whole program whose arrays are in the memory of GPUs. README.md shows lines of it.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "ring_attention/gpu_attention.hpp"

namespace ra = ring_attention;

namespace {

/// An array on the GPU. It stays until the program ends.
template <class T>
ra::View<T> on_gpu(const ra::Shape& shape, cudaStream_t stream, std::uint16_t bits) {
  const std::vector<std::uint16_t> values(static_cast<std::size_t>(shape.size()) * sizeof(T) / 2, bits);
  void* memory = nullptr;
  cudaMalloc(&memory, values.size() * 2);
  cudaMemcpyAsync(memory, values.data(), values.size() * 2, cudaMemcpyHostToDevice, stream);
  return {static_cast<T*>(memory), shape};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int gpus = 1;
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);  // on several hosts: the number of the rank on its host
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);

  constexpr std::uint16_t one = 0x3f80;  // as bf16
  const ra::Placement placement(ra::PlacementKind::zigzag, 100, ranks);
  const ra::Shape shard{1, 8, placement.tokens(rank), 64};
  const auto q = on_gpu<ra::Bf16>(shard, stream, one), k = q, v = q, dout = q;
  const auto out = on_gpu<float>(shard, stream, 0), lse = on_gpu<float>(shard.per_row(), stream, 0);
  const auto dq = on_gpu<float>(shard, stream, 0), dk = on_gpu<float>(shard, stream, 0),
             dv = on_gpu<float>(shard, stream, 0);
  const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};

  {
    ra::GpuAttention gpu(ra::mpi(MPI_COMM_WORLD));  // gpu_attention.hpp; link ring_attention_cuda
    gpu.forward<ra::Bf16>(stream, {q, k, v}, {out, lse}, placement, scoring);
    gpu.backward<ra::Bf16>(stream, {q, k, v}, {out, lse}, dout, {dq, dk, dv}, placement, scoring);
    gpu.wait();  // throws if a kernel failed or a message never arrived
  }

  float first = 0;
  cudaMemcpyAsync(&first, out.data(), sizeof first, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  std::printf("rank %d: out %g\n", rank, static_cast<double>(first));
  MPI_Finalize();
}
