#include "ring_attention/mpi/end.hpp"

#include <unistd.h>

#include <cstdlib>

namespace ring_attention {

void end_without_mpi() noexcept {
  usleep(
      200'000);  // MPICH's launcher may drop what it has not read when a rank ends: what the caller printed
  static constexpr char line[] = "cmd=abort exitcode=3\n";
  if (const char* socket = std::getenv("PMI_FD");
      socket != nullptr && std::getenv("HYDI_CONTROL_FD") != nullptr) {
    [[maybe_unused]] const auto written = write(std::atoi(socket), line, sizeof line - 1);
  }
  _exit(3);
}

}  // namespace ring_attention
