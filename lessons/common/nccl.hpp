// What the lessons over NCCL share: a GPU for each rank, and a communicator whose calls the lessons make themselves.
#pragma once

#include <nccl.h>

#include "cli/own_gpu.hpp"
#include "common/gpu.hpp"
#include "ring_attention/ring/transports/nccl.hpp"

namespace ring_attention::gpu {

inline void check(ncclResult_t code, std::source_location where = std::source_location::current()) {
  if (code != ncclSuccess) throw Error(located(std::string("NCCL: ") + ncclGetErrorString(code), where));
}

// A blocking communicator of the ranks of `comm`; none in a ring of one. To be made after the library's NcclWorld, which
// prepares NCCL for ranks that share a GPU.
class NcclRanks {
 public:
  explicit NcclRanks(const Communicator& comm) {
    if (comm.size() == 1) return;
    ncclUniqueId id{};
    if (comm.rank() == 0) check(ncclGetUniqueId(&id));
    std::string bytes(id.internal, sizeof id.internal);
    broadcast(comm, bytes);
    bytes.copy(id.internal, sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    check(ncclCommInitRankConfig(&comm_, comm.size(), id, comm.rank(), &config));
  }
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;
  ~NcclRanks() {
    if (comm_ != nullptr) (void)ncclCommDestroy(comm_);
  }
  [[nodiscard]] ncclComm_t handle() const { return comm_; }

 private:
  ncclComm_t comm_ = nullptr;
};

// The events of one hop.
struct Hop {
  cuda::Event ready;    // on the compute stream: what is sent is complete, what is received over is not read
  cuda::Event arrived;  // on the transfer stream
  cuda::Event idle, resumed;  // on the compute stream, before and after it waits
};

// Seconds during which the compute stream waited for these hops. They must have happened.
inline double exposed_seconds(const std::vector<Hop>& hops) {
  double sum = 0;
  for (const Hop& hop : hops) sum += hop.resumed.seconds_since(hop.idle);
  return sum;
}

}  // namespace ring_attention::gpu
