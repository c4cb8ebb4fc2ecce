/// \file
/// JSON as text. A value of it is its text in one line: the library has no JSON, and Python and the program have theirs.
#pragma once

#include <cmath>
#include <concepts>
#include <string>
#include <vector>

#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {

/// `{"name": value, ...}`, in the order in which they are added.
class JsonObject {
 public:
  JsonObject& add(const std::string& name, const auto& value);
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

[[nodiscard]] std::string json(const std::string& text);
[[nodiscard]] inline std::string json(const char* text) { return json(std::string(text)); }
/// null where it is not finite.
[[nodiscard]] inline std::string json(double number) {
  return std::isfinite(number) ? format("%.17g", number) : "null";
}
template <std::integral T>
[[nodiscard]] std::string json(T number) {
  if constexpr (std::same_as<T, bool>)
    return number ? "true" : "false";
  else
    return std::to_string(number);
}
[[nodiscard]] inline std::string json(const JsonObject& object) { return object.text(); }
template <class T>
[[nodiscard]] std::string json(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + json(value);
  return "[" + text + "]";
}

JsonObject& JsonObject::add(const std::string& name, const auto& value) {
  text_ += (text_.empty() ? "" : ", ") + json(name) + ": " + json(value);
  return *this;
}

}  // namespace ring_attention::diagnose
