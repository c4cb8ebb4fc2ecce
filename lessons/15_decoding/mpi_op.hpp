// Lesson 15, beside the idea: the merge as an operation of MPI. The order of the merges is MPI's.
#pragma once

#include LESSON_IDEA

namespace ring_attention::lesson_15 {

inline void merge_rows(void* from, void* into, int* rows, MPI_Datatype* type) {
  int bytes = 0;
  MPI_Type_size(*type, &bytes);
  const auto row = static_cast<std::size_t>(bytes) / sizeof(double),
             all = row * static_cast<std::size_t>(*rows);
  for (std::size_t at = 0; at < all; at += row)
    lesson::merge({static_cast<double*>(into) + at, row}, {static_cast<const double*>(from) + at, row});
}

/// The states over the keys of all ranks. \param states  a row of dim + 2 numbers for each head
inline std::vector<double> merged_by_mpi(const Communicator& comm, std::vector<double> states, Index dim) {
  MPI_Datatype row = MPI_DATATYPE_NULL;
  MPI_Op merge = MPI_OP_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(dim) + 2, MPI_DOUBLE, &row));
  check_mpi(MPI_Type_commit(&row));
  check_mpi(MPI_Op_create(merge_rows, 1, &merge));  // 1: it commutes
  const int heads = static_cast<int>(std::ssize(states) / (dim + 2));
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, states.data(), heads, row, merge, comm.handle()));
  check_mpi(MPI_Op_free(&merge));
  check_mpi(MPI_Type_free(&row));
  return states;
}

}  // namespace ring_attention::lesson_15
