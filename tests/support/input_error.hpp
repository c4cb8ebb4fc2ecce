// The message with which code refuses its input.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// The message of the InputError that `body` throws. No error, or more than one line, is a failure.
template <class Body>
std::string input_error(Body&& body) {
  try {
    body();
  } catch (const InputError& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return message;
  }
  ADD_FAILURE() << "no InputError";
  return "";
}

/// \param part must be in the message of the InputError that `body` throws.
template <class Body>
void expect_input_error(Body&& body, const std::string& part) {
  const std::string message = input_error(body);
  EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

}  // namespace ring_attention::test
