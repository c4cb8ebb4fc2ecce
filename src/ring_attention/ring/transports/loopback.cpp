#include "ring_attention/ring/transports/loopback.hpp"

#include <algorithm>
#include <exception>
#include <thread>

namespace ring_attention {
namespace {

/// Thrown in the ranks that the failure of another rank wakes up; never the reported one.
class Stopped : public Error {
 public:
  Stopped() : Error("another rank failed") {}
};

}  // namespace

void copy_in_host_memory(std::span<const std::byte> from, std::span<std::byte> to) {
  std::ranges::copy(from, to.begin());
}

LoopbackWorld::LoopbackWorld(int ranks, SimulatedLink link, std::chrono::duration<double> timeout,
                             CopyParcel copy)
    : ranks_(ranks),
      link_(link),
      timeout_(timeout),
      copy_(std::move(copy)),
      changed_(static_cast<std::size_t>(ranks)),
      slots_(static_cast<std::size_t>(channels * ranks * ranks)) {
  require(ranks >= 1, "a ring has at least one rank");
}

void LoopbackWorld::run(const std::function<void(int)>& body) {
  slots_.assign(slots_.size(), Slot{});  // removes parcels of a run that failed
  stopped_ = false;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Stopped&) {  // NOLINT: the rank that failed has thrown
      } catch (...) {
        {
          const std::lock_guard lock(mutex_);
          if (!failure) failure = std::current_exception();
        }
        stop();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  require(!stopped_, "loopback ring: a rank left in the middle of a hop");
}

void LoopbackWorld::require_running() const {
  if (stopped_) throw Stopped();
}

void LoopbackWorld::wait(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, auto ready) {
  const bool in_time =
      changed_[static_cast<std::size_t>(rank)].wait_for(lock, timeout_, [&] { return stopped_ || ready(); });
  require_running();
  require(in_time, "loopback ring: " + what + " took more than " + std::to_string(timeout_.count()) + " s");
}

void LoopbackWorld::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (std::condition_variable& changed : changed_) changed.notify_one();
}

LoopbackWorld::Clock::time_point LoopbackWorld::arrival(Index bytes) const {
  auto flight = std::chrono::duration<double>(link_.latency);
  if (link_.bytes_per_second > 0)
    flight += std::chrono::duration<double>(static_cast<double>(bytes) / link_.bytes_per_second);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(flight);
}

void LoopbackWorld::send(int from, int to, int channel, std::span<const std::byte> bytes,
                         Clock::time_point arrival) {
  {
    const std::lock_guard lock(mutex_);
    Slot& sent = slot(from, to, channel);
    require(!sent.full, "loopback ring: a parcel was sent before the previous one was received");
    sent = {bytes, arrival, true};
  }
  wake(to);
}

void LoopbackWorld::receive(int from, int to, int channel, std::span<std::byte> bytes) {
  Slot& sent = slot(from, to, channel);
  std::unique_lock lock(mutex_);
  wait(lock, to, "rank " + std::to_string(to) + " waiting for rank " + std::to_string(from),
       [&] { return sent.full; });
  lock.unlock();
  std::this_thread::sleep_until(sent.arrival);
  lock.lock();
  require_running();
  require(sent.bytes.size() == bytes.size(), "loopback ring: a parcel of another length arrived");
  copy_(sent.bytes, bytes);
  sent.full = false;
  lock.unlock();
  wake(from);
}

void LoopbackWorld::wait_until_taken(int from, int to, int channel) {
  const Slot& sent = slot(from, to, channel);
  std::unique_lock lock(mutex_);
  wait(lock, from, "rank " + std::to_string(to) + " taking the parcel of rank " + std::to_string(from),
       [&] { return !sent.full; });
}

LoopbackTransport::~LoopbackTransport() {
  if (lent_) world_.stop();
}

void LoopbackTransport::start(const Hop& hop) {
  pending_.start(hop);
  if (hop.send.empty()) return;
  const auto length = static_cast<Index>(hop.send.size());
  world_.send(rank_, next_, channel_, hop.send, world_.arrival(length));
  lent_ = true;
  ++statistics_.messages_sent;
  statistics_.bytes_sent += length;
}

void LoopbackTransport::finish() {
  const auto begin = LoopbackWorld::Clock::now();
  const Hop& hop = pending_.finish();
  if (!hop.receive.empty()) world_.receive(prev_, rank_, channel_, hop.receive);
  if (lent_) world_.wait_until_taken(rank_, next_, channel_);
  lent_ = false;

  statistics_.bytes_received += static_cast<Index>(hop.receive.size());
  statistics_.exposed_seconds += std::chrono::duration<double>(LoopbackWorld::Clock::now() - begin).count();
}

}  // namespace ring_attention
