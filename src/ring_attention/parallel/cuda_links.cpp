#include "ring_attention/parallel/cuda_links.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ring_attention/parallel/collectives/staged_all_to_all.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/parallel/collectives/nccl_all_to_all.hpp"
#endif

namespace ring_attention {
namespace {

#ifdef RING_ATTENTION_HAS_NCCL
/// The text of rank 0, on every rank. Collective.
void broadcast(AllToAll& ranks, std::string& text) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto to_all = [&](std::span<std::byte> bytes) {
    Pieces pieces{std::vector<std::span<const std::byte>>(size), std::vector<std::span<std::byte>>(size)};
    if (ranks.rank() == 0)
      std::fill(pieces.send.begin() + 1, pieces.send.end(), bytes);
    else
      pieces.receive.front() = bytes;
    ranks.all_to_all(pieces);
  };
  std::size_t length = text.size();
  to_all(std::as_writable_bytes(std::span(&length, 1)));
  text.resize(length);
  to_all(std::as_writable_bytes(std::span(text)));
}

std::shared_ptr<NcclWorld> connected(AllToAll& ranks, const CudaLinkOptions& options) {
  return std::make_shared<NcclWorld>(
      Ring{ranks.rank(), ranks.size()}, [&ranks](std::string& text) { broadcast(ranks, text); },
      NcclOptions{nccl_sms, options.timeout, options.alive, options.enqueues, options.share_gpu});
}
#endif

}  // namespace

CudaLinks::CudaLinks(std::unique_ptr<Links> host, cuda::StreamHandle compute, CudaLinkOptions options)
    : host_(std::move(host)), compute_(compute), options_(std::move(options)) {
#ifndef RING_ATTENTION_HAS_NCCL
  if (options_.nccl) throw Error("this library was built without NCCL");
#endif
  ring_ = between_gpus(std::make_unique<AllToAllAdapter>(host_->ring()));
  ulysses_ = std::make_unique<AllToAllAdapter>(host_->ulysses());
  if (ulysses_->size() > 1) ulysses_ = between_gpus(std::move(ulysses_));
}

CudaLinks::~CudaLinks() = default;

std::unique_ptr<Transport> CudaLinks::transport(Channel channel, std::size_t most_bytes) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (options_.nccl) return std::make_unique<NcclTransport>(*nccl_worlds_.front(), compute_);
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

std::unique_ptr<AllToAll> CudaLinks::between_gpus(std::unique_ptr<AllToAll> host) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (options_.nccl)
    return std::make_unique<NcclAllToAll>(nccl_worlds_.emplace_back(connected(*host, options_)), compute_);
#endif
  return std::make_unique<StagedAllToAll>(compute_, std::move(host), options_.alive);
}

}  // namespace ring_attention
