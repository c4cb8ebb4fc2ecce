// The message with which all ranks refuse their input.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention::test {

/// The message of the AgreedError that `body` throws, the same line on every rank. Anything else is a failure.
template <class Body>
std::string agreed_error(Body&& body) {
  std::string message;
  try {
    body();
    ADD_FAILURE() << "no AgreedError";
  } catch (const AgreedError& error) {
    message = error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an AgreedError: " << error.what();
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  std::string first = message;
  first.resize(1000);
  MPI_Bcast(first.data(), 1000, MPI_CHAR, 0, MPI_COMM_WORLD);
  EXPECT_EQ(message, first.c_str()) << "rank 0 says something else";
  return message;
}

/// \param part must be in the message of the AgreedError that `body` throws.
template <class Body>
void expect_agreed_error(Body&& body, const std::string& part) {
  const std::string message = agreed_error(body);
  EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

}  // namespace ring_attention::test
