// Stands for the library of another MPI that a package, such as Debian's mpi4py, brings into the process.

#include <cstring>

extern "C" {
int ompi_mpi_comm_world = 0;

int MPI_Get_library_version(char* version, int* length) {
  std::strcpy(version, "Another MPI v4.1.4, package: stand-in\nfurther lines");
  *length = static_cast<int>(std::strlen(version));
  return 0;
}
}
