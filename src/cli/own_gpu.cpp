#include "cli/own_gpu.hpp"

#include <algorithm>
#include <iterator>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/mpi/host.hpp"

namespace ring_attention {

GpuShare gpu_share(const Communicator& comm) {
  const cuda::DeviceId mine = cuda::id_of(cuda::current_device());
  const auto ranks = static_cast<int>(std::ranges::count(all_gather(comm, mine), mine));
  return {ranks, !all_of_ranks(comm, ranks == 1)};
}

GpuShare use_own_gpu(const Communicator& comm, bool may_share) {
  const HostGroup here = host_group(comm);
  const std::vector<int> usable = cuda::usable_devices();
  agree(comm, [&] {
    if (usable.empty())
      throw InputError("--device cuda: " + cuda::why_no_device() + ": leave it out to use the CPU");
    cuda::use_device(usable[static_cast<std::size_t>(here.rank) % usable.size()]);
  });
  const GpuShare share = gpu_share(comm);
  agree(comm, [&] {
    if (share.ranks > 1 && !may_share)
      throw InputError("--device cuda: rank " + std::to_string(comm.rank()) +
                       " would share its GPU: " + counted(here.size, "rank") + " on this machine, " +
                       counted(std::ssize(usable), "usable GPU") +
                       " visible to this process: start fewer, or give --share-gpu to try it out");
  });
  return share;
}

}  // namespace ring_attention
