// What an Error says.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// The message of the Error that `run` throws. No error is a failure.
template <class Run>
std::string thrown_message(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error";
  return "";
}

}  // namespace ring_attention::test
