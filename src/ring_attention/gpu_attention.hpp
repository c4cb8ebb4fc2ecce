/// \file
/// `GpuAttention`: the calls of ring_attention.hpp for arrays in the memory of a GPU, on the caller's stream. In the library
/// ring_attention_cuda.
///
///     ra::GpuAttention attention(ra::mpi(MPI_COMM_WORLD));
///     attention.forward<ra::Bf16>(stream, {q, k, v}, {out, lse}, placement, scoring);
///     attention.backward<ra::Bf16>(stream, {q, k, v}, {out, lse}, grad_out, {dq, dk, dv}, placement, scoring);
///     attention.wait();
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <unordered_set>

#include "ring_attention/call.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/parallel/observer.hpp"

struct CUstream_st;

namespace ring_attention {

/// \addtogroup public_api
/// @{

/// A CUDA stream, cudaStream_t. Null is the default stream. (This header includes none of CUDA's.)
using GpuStream = CUstream_st*;

/// Bf16 and Fp16 have the layout of __nv_bfloat16 and __half.
template <class T>
concept GpuNumber = std::same_as<T, float> || std::same_as<T, Bf16> || std::same_as<T, Fp16>;

/// How a GPU computes and sends. The same on all ranks.
struct GpuOptions {
  enum class Transport {
    automatic,  ///< nccl where the library has it, otherwise staged
    nccl,       ///< from GPU to GPU
    staged      ///< through the memory of the host, over the ranks: the host waits, and allocates. Same bits
  };
  Transport transport = Transport::automatic;
  std::string kernel = "auto";           ///< as the program's --kernel
  std::string backward_kernel = "auto";  ///< as --backward-kernel
  std::chrono::duration<double> timeout{
      60};                 ///< how long NCCL may take for one message, once this rank is ready for it
  bool share_gpu = false;  ///< lets ranks share a GPU over NCCL, to try it out
};

/// How a GpuAttention computes: may be changed between two calls, which then make the communicators that they need.
struct GpuCall {
  Division division = ring();  ///< the same on all ranks
  GpuOptions gpu = {};         ///< the same on all ranks
  Observers observers = {};    ///< outlive the calls, and the GpuAttention if they are not taken out before
  bool sum_numbers = true;     ///< as in Attention
};

/// Stream, memory and communicators of a GpuAttention. Only the first call makes them, and only its .cpp knows the type: so a
/// user's program needs none of the headers of the engines and links of GPUs.
class GpuParts;

/// Attention for a program whose arrays are in the memory of GPUs. It keeps NCCL's communicators and the memory of a call.
///
/// Arguments and errors are those of forward() and backward() of ring_attention.hpp. All functions except wait() are
/// collective, including the destructor. After an Error no further call is possible on any rank.
///
/// All pointers are to the memory of one GPU: the one that is current in the first call. The caller owns the arrays. q, k, v
/// and dO have the type T; bias and results are float.
/// - Order: the work starts after everything that is already on `stream`, and what is enqueued on `stream` later starts
///   after the results are complete. So as soon as the call returns, the caller may free or overwrite arrays in stream order.
/// - The call enqueues its work and returns. The host waits until the other ranks also make the call: one MPI_Allreduce, or
///   Peers::unite, of 32 bytes. It waits for the GPU in three cases: in the first call for given shapes, placement, scoring
///   and options, which allocates memory and makes communicators; with Transport::staged; and, as wait() does, in a backward
///   with sinks, whose gradient is summed on the host.
/// - Memory: as for forward() and backward(), and the results a second time. It stays allocated until this object is
///   destroyed, so a further call that differs only in the numbers in its arrays allocates nothing.
/// - wait() throws Error if a kernel or a message has failed after the call. If a rank has noticed the failure before, the
///   next call throws AgreedError on all ranks. Only wait() detects that a message does not come within `timeout`: it then
///   ends the communication, and the stream continues with undefined results. So call wait() before anything that waits
///   for the stream without a time limit, such as cudaStreamSynchronize.
/// - Over Peers, with Transport::staged the peers move the bytes, and with NCCL only the ids of its communicators; that has
///   run with ranks that are processes alone.
class GpuAttention {
 public:
  explicit GpuAttention(std::shared_ptr<AttentionRanks> ranks, GpuCall call = {});
  GpuAttention(GpuAttention&&) noexcept;
  GpuAttention& operator=(GpuAttention&&) noexcept;
  /// Waits as wait() does, but throws nothing.
  ~GpuAttention();

  /// How the next call computes.
  [[nodiscard]] GpuCall& how() { return how_; }

  template <GpuNumber T>
  void forward(GpuStream stream, const AttentionArrays<T>& arrays, const ResultViews<float>& to,
               const Placements& placement, const Scoring& scoring);
  template <GpuNumber T>
  TermNumbers backward(GpuStream stream, const AttentionArrays<T>& arrays,
                       const ResultViews<const float>& result, View<const T> grad_out,
                       const GradientViews<float>& to, const Placements& placement, const Scoring& scoring);
  /// The host waits until all work of earlier calls is done. \throws Error when a kernel or NCCL has failed, or a message
  /// has not come within the time-out
  void wait();

 private:
  /// What a call does on this rank, once the arguments of all ranks are checked: use(attention, collectively).
  template <class T>
  void run(GpuStream stream, const Call<T>& call, const auto& use);
  template <class T>
  [[nodiscard]] Call<T> call_of(const char* name, const AttentionArrays<T>& arrays,
                                const Placements& placement, const Scoring& scoring) const;

  std::shared_ptr<AttentionRanks> ranks_;
  GpuCall how_;
  std::unordered_set<std::string> completed_;  // texts of calls
  std::unique_ptr<GpuParts> parts_;            // from the first call on
};

/// @}

}  // namespace ring_attention
