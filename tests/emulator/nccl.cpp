// The part of NCCL that NcclTransport uses, over MPI. A hop is complete when ncclGroupEnd returns.

#include <mpi.h>
#include <nccl.h>

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
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  *comm = new ncclComm{};
  return result_of(MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->world));
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
