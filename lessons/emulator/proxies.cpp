#include "emulator/proxies.hpp"

#include <algorithm>
#include <cstring>

namespace ring_attention::emulator {

void UnfencedStores::store(unsigned address, unsigned bytes) {
  const unsigned last = (address + bytes - 1) / 4;
  if (by_.size() <= last) by_.resize(last + 1);
  if (words_.size() <= thread()) words_.resize(thread() + 1);
  for (unsigned word = address / 4; word <= last; ++word) {
    if (by_[word] == thread() + 1) continue;
    by_[word] = static_cast<std::uint16_t>(thread() + 1);
    words_[thread()].push_back(word);
  }
}

void UnfencedStores::fence() {
  if (words_.size() <= thread()) return;
  for (const unsigned word : words_[thread()])
    if (by_[word] == thread() + 1) by_[word] = 0;
  words_[thread()].clear();
}

void UnfencedStores::forget(unsigned address, unsigned bytes) {
  for (unsigned word = address / 4; word <= (address + bytes - 1) / 4 && word < by_.size(); ++word)
    by_[word] = 0;
}

bool UnfencedStores::in(unsigned address, unsigned bytes) const {
  const std::size_t first = std::min<std::size_t>(address / 4, by_.size()),
                    end = std::min<std::size_t>((address + bytes + 3) / 4, by_.size());
  return std::any_of(by_.begin() + static_cast<std::ptrdiff_t>(first),
                     by_.begin() + static_cast<std::ptrdiff_t>(end),
                     [](std::uint16_t thread) { return thread != 0; });
}

void copy_asynchronously(unsigned to, const void* from) {
  std::memcpy(shared_at(to, 16, 16), from, 16);
  unfenced_stores().forget(to, 16);
}

}  // namespace ring_attention::emulator
