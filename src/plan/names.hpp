/// \file
/// `named`: an entry of a list by its name, or an error that lists the names.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {

/// "a, b, c".
template <class Entry>
[[nodiscard]] std::string names_of(const std::vector<Entry>& entries) {
  std::string names;
  for (const Entry& entry : entries) names += (names.empty() ? "" : ", ") + entry.name;
  return names;
}

/// \param kind  "model"
/// \throws InputError when there is none of that name
template <class Entry>
[[nodiscard]] Entry named(const std::vector<Entry>& entries, const std::string& name,
                          const std::string& kind) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry;
  throw InputError("unknown " + kind + " '" + name + "'", "known are " + names_of(entries),
                   "give one of them, or its numbers");
}

}  // namespace ring_attention::plan
