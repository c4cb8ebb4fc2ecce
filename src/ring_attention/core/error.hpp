/// \file
/// Errors: `require` for what must hold, `InputError` for what a user can fix.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ring_attention {

/// A broken contract between parts of the program. `what()` ends with the place in the source.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad input: a file, a flag, a shape. `what()` is one line that names the culprit and the remedy,
/// without a place in the source, because the source is not at fault.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// `culprit: problem: remedy`.
  InputError(const std::string& culprit, const std::string& problem, const std::string& remedy)
      : std::runtime_error(culprit + ": " + problem + ": " + remedy) {}
};

/// Throws Error("message [file:line]") unless `condition` holds.
void require(bool condition, std::string_view message,
             std::source_location where = std::source_location::current());

/// `message [file:line]`, the form that every Error of this project has.
std::string located(std::string_view message, const std::source_location& where);

}  // namespace ring_attention
