#include "program/train/directory_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

DirectoryLock::DirectoryLock(const std::string& directory)
    : file_(open(directory.c_str(), O_RDONLY | O_CLOEXEC)) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point give_up = Clock::now() + std::chrono::seconds(2);
  while (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (Clock::now() > give_up) {
      close(file_);
      throw InputError("--checkpoint " + directory, "another training writes there now",
                       "wait until it has ended, or give another directory");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

DirectoryLock::~DirectoryLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace ring_attention
