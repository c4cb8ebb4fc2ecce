/// \file
/// The names of MPI that the library uses, for a Python module that is built where no MPICH is (RING_ATTENTION_MPI). No
/// function of MPI is called: load_mpi() throws before.
#pragma once

#include <cstdint>

#define RING_ATTENTION_WITHOUT_MPI

// NOLINTBEGIN: the names are MPI's.
// clang-format off
struct MPI_Status { int MPI_SOURCE; };
using MPI_Comm = int;
using MPI_Request = int;
using MPI_Message = int;
using MPI_Errhandler = int;
using MPI_Datatype = int;
using MPI_Op = int;
using MPI_Aint = std::intptr_t;
using MPI_Count = std::int64_t;
enum {
  MPI_SUCCESS, MPI_COMM_NULL, MPI_COMM_WORLD, MPI_COMM_SELF, MPI_COMM_TYPE_SHARED, MPI_REQUEST_NULL,
  MPI_MESSAGE_NULL, MPI_ERRHANDLER_NULL, MPI_ERRORS_RETURN, MPI_KEYVAL_INVALID, MPI_INFO_NULL, MPI_ANY_SOURCE,
  MPI_BYTE, MPI_INT, MPI_INT64_T, MPI_UINT64_T, MPI_DOUBLE, MPI_MAX, MPI_MIN, MPI_SUM, MPI_BOR,
  MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE, MPI_MAX_PROCESSOR_NAME,
  MPI_MAX_LIBRARY_VERSION_STRING, MPI_MAX_ERROR_STRING
};
#define MPI_STATUS_IGNORE static_cast<MPI_Status*>(nullptr)
#define MPI_IN_PLACE nullptr
#define MPI_BOTTOM nullptr
#define MPI_COMM_NULL_COPY_FN nullptr

#define NONE(name) inline int name(auto&&...) { return 1; }
NONE(MPI_Abort) NONE(MPI_Allgather) NONE(MPI_Allreduce) NONE(MPI_Allreduce_c) NONE(MPI_Barrier) NONE(MPI_Bcast)
NONE(MPI_Bcast_c) NONE(MPI_Comm_create_keyval) NONE(MPI_Comm_dup) NONE(MPI_Comm_free) NONE(MPI_Comm_free_keyval)
NONE(MPI_Comm_get_attr) NONE(MPI_Comm_get_errhandler) NONE(MPI_Comm_idup) NONE(MPI_Comm_rank) NONE(MPI_Comm_set_attr)
NONE(MPI_Comm_set_errhandler) NONE(MPI_Comm_size) NONE(MPI_Comm_split) NONE(MPI_Comm_split_type)
NONE(MPI_Comm_test_inter) NONE(MPI_Errhandler_free) NONE(MPI_Error_string) NONE(MPI_Finalize) NONE(MPI_Finalized)
NONE(MPI_Get_address) NONE(MPI_Get_elements_x) NONE(MPI_Get_processor_name) NONE(MPI_Ialltoallv_c) NONE(MPI_Improbe)
NONE(MPI_Init_thread) NONE(MPI_Initialized) NONE(MPI_Irecv) NONE(MPI_Irecv_c) NONE(MPI_Isend_c) NONE(MPI_Mrecv_c)
NONE(MPI_Query_thread) NONE(MPI_Recv_c) NONE(MPI_Send) NONE(MPI_Send_c) NONE(MPI_Test) NONE(MPI_Testall)
NONE(MPI_Wait) NONE(MPI_Get_library_version)
#undef NONE
inline double MPI_Wtime() { return 0; }
// clang-format on
// NOLINTEND
