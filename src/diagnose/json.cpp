#include "diagnose/json.hpp"

namespace ring_attention::diagnose {

std::string json(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += format("\\u%04x", static_cast<unsigned>(c));
    else
      quoted += c;
  }
  return quoted + "\"";
}

}  // namespace ring_attention::diagnose
