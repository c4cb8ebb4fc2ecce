#include "program/watchdog.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "ring_attention/mpi/end.hpp"

namespace ring_attention {

const char* name(Phase phase) {
  constexpr std::array names{"start",
                             "reading the input",
                             "agreeing with the other ranks",
                             "compute",
                             "exchange",
                             "drain",
                             "checking against the reference",
                             "writing the output",
                             "ending together"};  // in the order of Phase
  return names.at(static_cast<std::size_t>(phase));
}

void Activity::enter(Phase phase, int step, int peer) {
  phase_.store(phase, std::memory_order_relaxed);
  step_.store(step, std::memory_order_relaxed);
  peer_.store(peer, std::memory_order_relaxed);
  beat();
  if (observer_ != nullptr) observer_->enters(phase);
}

std::string Activity::describe() const {
  std::string text = name(phase_.load(std::memory_order_relaxed));
  if (const int step = step_.load(std::memory_order_relaxed); step >= 0)
    text += ", step " + std::to_string(step);
  if (const int peer = peer_.load(std::memory_order_relaxed); peer >= 0)
    text += ", peer " + std::to_string(peer);
  return text;
}

Watchdog::Watchdog(const Activity& activity, std::chrono::duration<double> timeout, int rank,
                   const char* limit)
    : activity_(activity), timeout_(timeout), rank_(rank), limit_(limit), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void Watchdog::expect(std::chrono::duration<double> timeout, int rank) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
  rank_ = rank;
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  std::uint64_t last_beat = activity_.beats();
  auto last_move = Clock::now();
  std::unique_lock lock(mutex_);
  const auto poll = [this] { return std::min(timeout_ / 8, std::chrono::duration<double>(0.5)); };
  while (!stopped_.wait_for(lock, poll(), [this] { return stop_; })) {
    if (const std::uint64_t beat = activity_.beats(); beat != last_beat) {
      last_beat = beat;
      last_move = Clock::now();
    } else if (Clock::now() - last_move > timeout_) {
      const std::string rank = rank_ < 0 ? "?" : std::to_string(rank_);
      std::fprintf(stderr,
                   "[rank %s] error: nothing moved for %g s: %s; a peer has stopped, or is slower than %s\n",
                   rank.c_str(), timeout_.count(), activity_.describe().c_str(), limit_);
      std::fflush(stderr);
      end_without_mpi();
    }
  }
}

}  // namespace ring_attention
