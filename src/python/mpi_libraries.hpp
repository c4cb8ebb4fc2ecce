/// \file
/// Which MPI libraries this process has loaded. Two of them in one process crash, or work apart.
#pragma once

#include <string>
#include <vector>

namespace ring_attention::python {

/// Loads the library of MPI's functions: this module is linked without it. No function of MPI may be called before.
/// \throws Error when there is none
void load_mpi();

/// The names of the MPI libraries, each as its MPI_Get_library_version gives it, the first line.
[[nodiscard]] std::vector<std::string> loaded_mpi_libraries();

/// \throws Error that names both when there is more than one
void require_one_mpi_library();

}  // namespace ring_attention::python
