// The part of NCCL that NcclTransport, NcclAllToAll and the lessons use, over MPI.
//
// A group is work of its stream. It begins when the work before it is done: then it receives into memory of its own. Some
// time later it reads what it sends, and when all has arrived it writes what it received. A call of a non-blocking
// communicator often returns ncclInProgress; what it enqueues is enqueued when ncclCommGetAsyncError says ncclSuccess.

#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/streams.hpp"

using namespace ring_attention::emulator;  // NOLINT: this file is a part of it

namespace {

struct Message {
  void* memory;
  std::size_t bytes;
  int peer;
  bool send;
};

struct Group {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
};

}  // namespace

struct ncclComm {
  MPI_Comm world = MPI_COMM_NULL;
  bool blocking = true;
  unsigned polls = 0;  // that still answer ncclInProgress
  Group group;         // is enqueued then
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
};

namespace {

// A group on its stream.
class Transfer {
 public:
  explicit Transfer(Group group)
      : messages_(std::move(group.messages)), world_(group.comm->world), aborted_(group.comm->aborted) {}

  State operator()() {
    if (begin_ == 0) begin_ = now();
    const bool too_late = now() - begin_ > patience();
    if (*aborted_ || too_late) {
      if (!requests_.empty()) (void)new Transfer(std::move(*this));  // MPI may still write to its memory
      if (too_late) fail("a message of NCCL waits for another rank that does not come");
      return State::done;
    }
    if (requests_.empty()) start(false);
    if (requests_.size() < messages_.size()) {
      if (random_() % 2 == 0) return State::busy;
      start(true);
    }
    int all = 0;
    require(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE));
    if (all == 0) return State::busy;
    for (std::size_t i = 0; i < messages_.size(); ++i)
      if (!messages_[i].send) std::memcpy(messages_[i].memory, staged_[i].data(), staged_[i].size());
    return State::done;
  }

 private:
  static void require(int code) {
    if (code != MPI_SUCCESS) fail("NCCL: MPI has failed");
  }
  void start(bool sends) {
    staged_.resize(messages_.size());
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const Message& message = messages_[i];
      if (message.send != sends) continue;
      staged_[i].resize(message.bytes);
      const auto count = static_cast<int>(message.bytes);
      if (sends) {
        std::memcpy(staged_[i].data(), message.memory, message.bytes);
        require(MPI_Isend(staged_[i].data(), count, MPI_BYTE, message.peer, 0, world_,
                          &requests_.emplace_back()));
      } else {
        require(MPI_Irecv(staged_[i].data(), count, MPI_BYTE, message.peer, 0, world_,
                          &requests_.emplace_back()));
      }
    }
  }

  std::vector<Message> messages_;
  MPI_Comm world_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  std::vector<std::vector<std::byte>> staged_;  // of each message
  std::vector<MPI_Request> requests_;
  double begin_ = 0;
  Random random_{options().seed};
};

void enqueue_group(Group group) {
  if (group.messages.empty()) return;
  const cudaStream_t stream = group.stream;
  enqueue(stream, [transfer = std::make_shared<Transfer>(std::move(group))] { return (*transfer)(); });
}

// The group between ncclGroupStart and ncclGroupEnd: of one communicator and one stream.
Group& open_group() {
  static Group group;
  return group;
}
int open_groups = 0;
const char* last_error = "";

// What a call of the communicator returns when it has done its part.
ncclResult_t in_progress(ncclComm_t comm) {
  if (!comm->blocking) comm->polls = random_of_host(4);
  return comm->polls > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t add(Message message, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                 cudaStream_t stream) {
  message.bytes = count * (type == ncclFloat ? sizeof(float) : 1);
  Group& group = open_group();
  if ((type != ncclFloat && type != ncclUint8) || message.bytes > std::numeric_limits<int>::max())
    return ncclInvalidArgument;
  if (comm->polls > 0) return ncclInvalidUsage;  // its last call is in progress
  if (!group.messages.empty() && (group.comm != comm || group.stream != stream)) return ncclInvalidUsage;
  (void)ncclGroupStart();
  group.comm = comm;
  group.stream = stream;
  group.messages.push_back(message);
  return ncclGroupEnd();
}

}  // namespace

namespace ring_attention::emulator {

int& sends_until_failure() {
  static int calls = [] {
    const char* const words = std::getenv("EMULATED_FAILING_SEND");
    int rank = 0, failing_rank = -1, number = 0;
    if (words == nullptr || std::sscanf(words, "%d %d", &failing_rank, &number) != 2) return 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == failing_rank ? number : 0;
  }();
  return calls;
}

int group_depth() { return open_groups; }

}  // namespace ring_attention::emulator

extern "C" {

const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclInvalidUsage ? "invalid usage: the communicator is busy, or a group has several of them"
                                  : "an error of the emulated NCCL";
}
// The last failure of this process, as in NCCL.
const char* ncclGetLastError(ncclComm_t) { return last_error; }
// All ranks of the job make communicators at the same time, and ranks of one communicator have one id.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  int rank = 0;
  const int code = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::memcpy(id->internal, &rank, sizeof rank);
  return code == MPI_SUCCESS ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId id, int rank, ncclConfig_t* config) {
  int colour = 0;
  std::memcpy(&colour, id.internal, sizeof colour);
  *comm = new ncclComm{};
  (*comm)->blocking = config->blocking != 0;
  if (MPI_Comm_split(MPI_COMM_WORLD, colour, rank, &(*comm)->world) != MPI_SUCCESS) return ncclSystemError;
  (void)MPI_Comm_set_errhandler((*comm)->world, MPI_ERRORS_RETURN);
  return in_progress(*comm);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->polls > 0) return ncclInvalidUsage;
  wait_for_all();
  return in_progress(comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->polls > 0 && !*comm->aborted)
    enqueue(nullptr, []() -> State { fail("NCCL: a communicator is destroyed before its end is complete"); });
  if (!*comm->aborted) {
    wait_for_all();
    (void)MPI_Comm_free(&comm->world);
  }  // else it may still have messages: no other communicator may get its name
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  if (open_group().comm == comm) open_group() = {};
  if (open_groups > 0) return ncclInProgress;  // as in NCCL it is done when the group ends, here never
  return ncclCommDestroy(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->polls > 0 ? ncclInProgress : ncclSuccess;
  if (comm->polls > 0) --comm->polls;
  if (comm->polls == 0) enqueue_group(std::exchange(comm->group, {}));
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--open_groups > 0) return ncclSuccess;
  Group group = std::exchange(open_group(), {});
  if (group.messages.empty()) return ncclSuccess;
  const ncclComm_t comm = group.comm;
  const ncclResult_t result = in_progress(comm);
  if (result == ncclInProgress)
    comm->group = std::move(group);
  else
    enqueue_group(std::move(group));
  return result;
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (int& left = sends_until_failure(); left > 0 && (left -= 1) == 0) {
    last_error = "this ncclSend was chosen to fail";
    return ncclSystemError;
  }
  return add({const_cast<void*>(from), 0, peer, true}, count, type, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({to, 0, peer, false}, count, type, comm, stream);
}

}  // extern "C"
