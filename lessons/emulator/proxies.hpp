// The two proxies through which a GPU accesses shared memory: loads and stores of threads, and asynchronous copies and
// products. The second one sees a store only after a fence.proxy.async of the thread that has stored.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/machine.hpp"

namespace ring_attention::emulator {

// The words of a block's shared memory whose last store is not fenced.
class UnfencedStores {
 public:
  // The running thread stores.
  void store(unsigned address, unsigned bytes);
  void fence();
  // An asynchronous copy overwrites them.
  void forget(unsigned address, unsigned bytes);
  [[nodiscard]] bool in(unsigned address, unsigned bytes) const;

 private:
  std::vector<std::uint16_t> by_;             // thread + 1, or 0
  std::vector<std::vector<unsigned>> words_;  // of each thread
};
inline UnfencedStores& unfenced_stores() { return of_block<UnfencedStores>(); }

// A copy by the asynchronous proxy, of 16 bytes.
void copy_asynchronously(unsigned to, const void* from);

}  // namespace ring_attention::emulator
