/// \file
/// Text: `format` is printf into a string. (std::format is missing from the oldest compilers we support.)
#pragma once

#include <string>

namespace ring_attention {

/// Like printf, checked by the compiler like printf, any length.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace ring_attention
