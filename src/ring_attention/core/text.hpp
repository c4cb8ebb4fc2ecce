/// \file
/// Text: `format` is printf into a string. (std::format is missing from the oldest compilers we support.)
#pragma once

#include <cstdint>
#include <string>

namespace ring_attention {

/// Like printf, checked by the compiler like printf, any length.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// `1 rank`, `3 ranks`.
[[nodiscard]] std::string counted(std::int64_t count, const std::string& noun);

}  // namespace ring_attention
