/// \file
/// `ProgressLine`: one line on stderr that shows how far a long run is.
#pragma once

#include <string>

#include "program/watchdog.hpp"

namespace ring_attention {

/// Rewrites one line on stderr twice a second, after the first second, and clears it in the destructor.
class ProgressLine {
 public:
  /// \param when  "auto": only when stderr is a terminal (it is none under mpiexec); "always"; "never"
  ProgressLine(const Activity& activity, int steps, const std::string& when);
  ~ProgressLine();

 private:
  void show(int steps);

  const Activity& activity_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ring_attention
