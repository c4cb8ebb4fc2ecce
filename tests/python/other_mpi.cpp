// Stands for the library of another MPI that a package, such as Debian's mpi4py, brings into the process.

#include <cstring>

extern "C" {
int ompi_mpi_comm_world = 0;

int MPI_Get_library_version(char* version, int* length) {
  constexpr char words[] = "Another MPI v4.1.4, package: stand-in\nfurther lines";
  std::memcpy(version, words, sizeof words);
  *length = sizeof words - 1;
  return 0;
}
}
