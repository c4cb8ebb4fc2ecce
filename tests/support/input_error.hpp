// What a piece of code says when it refuses its input.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// The message of the InputError that `run` throws. No error, or more than one line, is a failure.
template <class Run>
std::string input_error(Run&& run) {
  try {
    run();
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return message;
  }
  ADD_FAILURE() << "no InputError";
  return "";
}

/// \param part has to stand in the message of the InputError that `run` throws.
template <class Run>
void expect_input_error(Run&& run, const std::string& part) {
  const std::string message = input_error(run);
  EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

}  // namespace ring_attention::test
