// What the emulator's NCCL over MPI (lessons/emulator/nccl.cpp) needs of streams. The interpreter finishes all work of a
// stream in the call that enqueues it, and so does NCCL here.

#include <chrono>
#include <stdexcept>

#include "emulator/streams.hpp"

namespace ring_attention::emulator {

std::uint64_t first_seed() { return 1; }
bool tensor_cores_truncate() { return false; }
Options& options() {
  static Options all;
  return all;
}

double& patience() {
  static double seconds = 60;
  return seconds;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

unsigned random_of_host(unsigned n) {
  static unsigned calls = 0;
  return calls++ % n;
}

void fail(const std::string& what) { throw std::runtime_error(what); }

SharedPoint enqueue(CUstream_st*, StreamWork work) {  // NOLINT: declared so
  while (work() != State::done) {
  }
  return std::make_shared<Point>(Point{true, now()});
}

void wait_for_all() {}

}  // namespace ring_attention::emulator
