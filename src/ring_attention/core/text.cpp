#include "ring_attention/core/text.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

std::string format(const char* pattern, ...) {
  std::va_list arguments;
  va_start(arguments, pattern);
  char* text = nullptr;
  const int length = vasprintf(&text, pattern, arguments);
  va_end(arguments);
  require(length >= 0, "format: a pattern that printf refuses");
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace ring_attention
