#include "ring_attention/parallel/cuda_links.hpp"

#include <algorithm>
#include <utility>

#include "ring_attention/parallel/collectives/staged_all_to_all.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/parallel/collectives/nccl_all_to_all.hpp"
#endif

namespace ring_attention {
namespace {

#ifdef RING_ATTENTION_HAS_NCCL
std::shared_ptr<NcclWorld> connected(const Communicator& world, const Axis& axis,
                                     const CudaLinkOptions& options) {
  const MpiAllToAll ranks(world, axis);
  return std::make_shared<NcclWorld>(
      ranks.communicator(),
      NcclOptions{nccl_sms, options.timeout, options.alive, options.enqueues, options.share_gpu});
}
#endif

}  // namespace

CudaLinks::CudaLinks(const Communicator& world, const Axis& ulysses, const Axis& ring,
                     cuda::StreamHandle compute, CudaLinkOptions options)
    : world_(world), compute_(compute), options_(std::move(options)) {
  if (options_.nccl) {
#ifdef RING_ATTENTION_HAS_NCCL
    nccl_ring_ = nccl_worlds_.emplace_back(connected(world, ring, options_));
    ring_ = std::make_unique<NcclAllToAll>(nccl_ring_, compute_);
#else
    throw Error("this library was built without NCCL");
#endif
  } else {
    host_ = std::make_unique<MpiLinks>(world, ulysses, ring);
    ring_ = CudaLinks::group(ring);
  }
  ulysses_ = ulysses.size == 1 ? std::make_unique<OneRank>() : CudaLinks::group(ulysses);
}

CudaLinks::~CudaLinks() = default;

std::unique_ptr<Transport> CudaLinks::transport(Channel channel, std::size_t most_bytes) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (nccl_ring_) return std::make_unique<NcclTransport>(*nccl_ring_, compute_);
#endif
  return std::make_unique<StagedTransport>(compute_, most_bytes, host_->transport(channel, most_bytes));
}

bool CudaLinks::poll() {
#ifdef RING_ATTENTION_HAS_NCCL
  try {
    return std::ranges::count_if(nccl_worlds_, [](const auto& world) { return !world->poll(); }) == 0;
  } catch (const Error& error) {  // messages of one communicator may wait for those of another one
    for (const auto& world : nccl_worlds_) world->end(error.what());
    throw;
  }
#else
  return true;
#endif
}

std::unique_ptr<AllToAll> CudaLinks::group(const Axis& axis) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (options_.nccl)
    return std::make_unique<NcclAllToAll>(nccl_worlds_.emplace_back(connected(world_, axis, options_)),
                                          compute_);
#endif
  return std::make_unique<StagedAllToAll>(compute_, host_->group(axis), options_.alive);
}

}  // namespace ring_attention
