// The part of NCCL that NcclTransport and NcclAllToAll use, over MPI. A group is complete when ncclGroupEnd returns.

#include <mpi.h>
#include <nccl.h>

#include <cstring>
#include <vector>

struct ncclComm {
  MPI_Comm world;
};

namespace {

std::vector<MPI_Request>& group() {
  static std::vector<MPI_Request> requests;
  return requests;
}

MPI_Datatype mpi_type(ncclDataType_t type) { return type == ncclFloat ? MPI_FLOAT : MPI_BYTE; }

ncclResult_t result_of(int code) { return code == MPI_SUCCESS ? ncclSuccess : ncclSystemError; }

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "an error of the emulated NCCL"; }
// All ranks of the job make communicators at the same time, and ranks of one communicator have one id.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  int rank = 0;
  const int code = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::memcpy(id->internal, &rank, sizeof rank);
  return result_of(code);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId id, int rank, ncclConfig_t*) {
  int colour = 0;
  std::memcpy(&colour, id.internal, sizeof colour);
  *comm = new ncclComm{};
  return result_of(MPI_Comm_split(MPI_COMM_WORLD, colour, rank, &(*comm)->world));
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const int code = MPI_Comm_free(&comm->world);
  delete comm;
  return result_of(code);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  const int code = MPI_Waitall(static_cast<int>(group().size()), group().data(), MPI_STATUSES_IGNORE);
  group().clear();
  return result_of(code);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return result_of(MPI_Isend(from, static_cast<int>(count), mpi_type(type), peer, 0, comm->world,
                             &group().emplace_back()));
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
  return result_of(
      MPI_Irecv(to, static_cast<int>(count), mpi_type(type), peer, 0, comm->world, &group().emplace_back()));
}

}  // extern "C"
