// `.npy` files as strings, made by hand: files that NumPy writes, and files that it never writes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ring_attention::test {

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Numbers as they are in memory.
template <class T>
std::string raw(const std::vector<T>& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// A file with this dictionary, byte for byte: neither padded nor checked.
inline std::string npy_bytes(std::string_view dictionary, std::string_view payload = "", int major = 1) {
  std::string file{"\x93NUMPY"};
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(dictionary.size() >> (8 * i));
  return file.append(dictionary).append(payload);
}

}  // namespace ring_attention::test
