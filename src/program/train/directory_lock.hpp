/// \file
/// `DirectoryLock`: one process at a time writes into a directory.
#pragma once

#include <string>

namespace ring_attention {

/// Holds a directory until it is destroyed, or its process has ended in any way. A file system that has no such locks is
/// taken as free.
class DirectoryLock {
 public:
  /// Waits up to two seconds: a process that has been killed may not be gone yet.
  /// \throws InputError when another process holds it
  explicit DirectoryLock(const std::string& directory);
  DirectoryLock(const DirectoryLock&) = delete;
  ~DirectoryLock();

 private:
  int file_;
};

}  // namespace ring_attention
