// What an Error says.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// The message of the Error that `body` throws. No error is a failure.
template <class Body>
std::string thrown_message(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error";
  return "";
}

}  // namespace ring_attention::test
