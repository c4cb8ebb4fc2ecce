/// \file
/// MPI where a rank is an instance of one WebAssembly module in a page: the part that the library and the lessons call.
#pragma once

#include <cstdint>
#include <cstdlib>

inline int page_rank = 0, page_ranks = 1;  ///< the page writes both before a rank runs

// NOLINTBEGIN: the names are MPI's.
// clang-format off
using MPI_Comm = int; using MPI_Request = int; using MPI_Errhandler = int; using MPI_Datatype = int; using MPI_Op = int;
using MPI_Aint = std::intptr_t; using MPI_Count = std::int64_t;
struct MPI_Status { int MPI_SOURCE; MPI_Count bytes; };
enum {
  MPI_SUCCESS, MPI_ERR_OTHER, MPI_ERRORS_RETURN, MPI_COMM_TYPE_SHARED, MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_MULTIPLE,
  MPI_REQUEST_NULL = 0, MPI_ERRHANDLER_NULL = 0, MPI_INFO_NULL = 0,
  MPI_COMM_NULL = 0, MPI_COMM_SELF, MPI_COMM_WORLD,  // odd: of this rank alone
  MPI_BYTE = 1, MPI_INT = 4, MPI_INT64_T = 8, MPI_UINT64_T = 8 + 16, MPI_FLOAT = 4 + 32, MPI_DOUBLE = 8 + 32,  // modulo 16: bytes
  MPI_MAX = 0, MPI_MIN, MPI_SUM, MPI_BOR,
  MPI_MAX_PROCESSOR_NAME = 128, MPI_MAX_ERROR_STRING = 128
};
#define MPI_STATUS_IGNORE static_cast<MPI_Status*>(nullptr)
#define MPI_STATUSES_IGNORE static_cast<MPI_Status*>(nullptr)
#define MPI_IN_PLACE reinterpret_cast<void*>(-1)
#define MPI_BOTTOM nullptr

// Of mpi.cpp.
int MPI_Isend_c(const void* data, MPI_Count, MPI_Datatype, int to, int tag, MPI_Comm, MPI_Request*);
int MPI_Irecv_c(void* data, MPI_Count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Request*);
int MPI_Send_c(const void* data, MPI_Count, MPI_Datatype, int to, int tag, MPI_Comm);
int MPI_Recv_c(void* data, MPI_Count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Status*);
int MPI_Allreduce_c(const void* own, void* all, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Allgather(const void* own, int count, MPI_Datatype, void* all, int, MPI_Datatype, MPI_Comm);
int MPI_Bcast_c(void* data, MPI_Count, MPI_Datatype, int root, MPI_Comm);
int MPI_Comm_dup(MPI_Comm, MPI_Comm*);
double MPI_Wtime();
int PMPI_Waitall(int count, MPI_Request[], MPI_Status[]);
int PMPI_Testall(int count, MPI_Request[], int* done, MPI_Status[]);
int PMPI_Barrier(MPI_Comm);

// Of lessons/common/mpi_counter.cpp, which calls them by their other name.
int MPI_Waitall(int count, MPI_Request[], MPI_Status[]);
int MPI_Testall(int count, MPI_Request[], int* done, MPI_Status[]);
int MPI_Barrier(MPI_Comm);
#define BOTH(name, parameters, call) int name parameters; inline int P##name parameters { return call; }
BOTH(MPI_Send, (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm),
     MPI_Send_c(data, count, type, to, tag, comm))
BOTH(MPI_Recv, (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status),
     MPI_Recv_c(data, count, type, from, tag, comm, status))
BOTH(MPI_Isend, (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* one),
     MPI_Isend_c(data, count, type, to, tag, comm, one))
BOTH(MPI_Irecv, (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* one),
     MPI_Irecv_c(data, count, type, from, tag, comm, one))
BOTH(MPI_Wait, (MPI_Request* one, MPI_Status* status), PMPI_Waitall(1, one, status))

inline int PMPI_Type_size(MPI_Datatype type, int* bytes) { *bytes = type % 16; return MPI_SUCCESS; }
inline int MPI_Get_elements_x(const MPI_Status* got, MPI_Datatype type, MPI_Count* n) { *n = got->bytes / (type % 16); return MPI_SUCCESS; }
inline int MPI_Test(MPI_Request* one, int* done, MPI_Status* status) { return PMPI_Testall(1, one, done, status); }
inline int MPI_Allreduce(const void* own, void* all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return MPI_Allreduce_c(own, all, count, type, op, comm);
}
inline int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) { return MPI_Bcast_c(data, count, type, root, comm); }
inline int MPI_Init_thread(int*, char***, int level, int* given) { *given = level; return MPI_SUCCESS; }
inline int MPI_Comm_rank(MPI_Comm comm, int* rank) { *rank = comm % 2 != 0 ? 0 : page_rank; return MPI_SUCCESS; }
inline int MPI_Comm_size(MPI_Comm comm, int* size) { *size = comm % 2 != 0 ? 1 : page_ranks; return MPI_SUCCESS; }
inline int MPI_Error_string(int, char*, int* length) { *length = 0; return MPI_SUCCESS; }
inline int MPI_Abort(MPI_Comm, int code) { std::_Exit(code); }
#define GIVES(value, name) inline int name(auto* at) { *at = value; return MPI_SUCCESS; }
GIVES(1, MPI_Initialized) GIVES(0, MPI_Finalized) GIVES(MPI_THREAD_MULTIPLE, MPI_Query_thread) GIVES(MPI_COMM_NULL, MPI_Comm_free)
#define ALWAYS(code, name) inline int name(auto&&...) { return code; }
ALWAYS(MPI_SUCCESS, MPI_Finalize) ALWAYS(MPI_SUCCESS, MPI_Comm_set_errhandler) ALWAYS(MPI_SUCCESS, MPI_Comm_get_errhandler)
ALWAYS(MPI_SUCCESS, MPI_Errhandler_free) ALWAYS(MPI_SUCCESS, MPI_Comm_test_inter)
// No lesson of the page comes to these.
ALWAYS(MPI_ERR_OTHER, MPI_Comm_split) ALWAYS(MPI_ERR_OTHER, MPI_Comm_split_type) ALWAYS(MPI_ERR_OTHER, MPI_Get_processor_name)
ALWAYS(MPI_ERR_OTHER, MPI_Get_address) ALWAYS(MPI_ERR_OTHER, MPI_Alltoallv) ALWAYS(MPI_ERR_OTHER, MPI_Ialltoallv_c) ALWAYS(MPI_ERR_OTHER, MPI_Ibarrier)
// clang-format on
// NOLINTEND
