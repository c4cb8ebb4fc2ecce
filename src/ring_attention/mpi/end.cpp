#include "ring_attention/mpi/end.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace ring_attention {

void end_without_mpi() noexcept {
  // Hydra may drop what it has not read when a rank ends: give it time to read what the caller printed.
  usleep(200'000);
  static constexpr char line[] = "cmd=abort exitcode=3\n";
  const char *socket = std::getenv("PMI_FD"), *here = std::getenv("MPI_LOCALNRANKS"),
             *all = std::getenv("PMI_SIZE");
  if (socket != nullptr && here != nullptr && all != nullptr && std::strcmp(here, all) == 0) {
    [[maybe_unused]] const auto written = write(std::atoi(socket), line, sizeof line - 1);
  }
  _exit(3);
}

}  // namespace ring_attention
