#include "ring_attention/core/error.hpp"

namespace ring_attention {

std::string located(std::string_view message, const std::source_location& where) {
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
  return std::string(message) + " [" + std::string(file) + ":" + std::to_string(where.line()) + "]";
}

void require(bool condition, std::string_view message, std::source_location where) {
  if (!condition) throw Error(located(message, where));
}

}  // namespace ring_attention
