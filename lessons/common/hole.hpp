/// \file
/// What an exercise has where its reader is to write. exercise.sh includes it before the reader's copy.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ring_attention {

/// Ends the program: nothing stands here yet. exercise.sh reads the line.
[[noreturn]] inline void still_empty(const char* what) {
  std::printf("\n`%s` is still empty\n", what);
  std::fflush(stdout);
  std::_Exit(3);  // under MPI the launcher then ends the other ranks
}

}  // namespace ring_attention
