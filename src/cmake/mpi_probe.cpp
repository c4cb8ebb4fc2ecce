// Prints the rank of this process and the size of its world. Run on two ranks while CMake configures: a launcher that
// does not fit the library starts two worlds of one rank each, and nothing else would notice. The broadcast is one of the
// functions of MPI 4 with large counts, which some MPIs do not have.
#include <mpi.h>

#include <cstdio>

#if defined(RING_ATTENTION_ONLY_MPICH) && !defined(MPICH_NUMVERSION)
#error "another MPI: the Python module loads MPICH"
#endif

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int from_rank_0 = rank;
  MPI_Bcast_c(&from_rank_0, MPI_Count{1}, MPI_INT, 0, MPI_COMM_WORLD);
  std::printf("probe: rank %d of %d.\n", rank, ranks);
  MPI_Finalize();
  return 0;
}
