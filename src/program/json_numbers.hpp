/// \file
/// Numbers of a JSON file that a user may have changed: nlohmann's own conversions take 4.9 and true as integers, and wrap
/// around.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/command_line.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// The field of an object: a whole number within bounds.
/// \throws InputError, which names the field; nlohmann's exceptions when there is no such field
[[nodiscard]] inline Index integer_of(const nlohmann::ordered_json& object, const std::string& field,
                                      Bounds bounds) {
  const auto& value = object.at(field);
  // An integer is unsigned here when it is not negative; one of more than 64 bits is floating point.
  const bool whole = value.is_number_unsigned()
                         ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(bounds.most)
                         : value.is_number_integer();
  if (!whole || !within(value.get<Index>(), bounds.least, bounds.most))
    throw InputError(field + " is " + (value.is_number() ? value.dump() : value.type_name()) +
                     ": it must be a whole number from " + std::to_string(bounds.least) + " to " +
                     std::to_string(bounds.most));
  return value.get<Index>();
}

/// The field of an object: any number. \throws as integer_of
[[nodiscard]] inline double number_of(const nlohmann::ordered_json& object, const std::string& field) {
  const auto& value = object.at(field);
  if (!value.is_number()) throw InputError(field + " is " + value.type_name() + ": it must be a number");
  return value.get<double>();
}

}  // namespace ring_attention
