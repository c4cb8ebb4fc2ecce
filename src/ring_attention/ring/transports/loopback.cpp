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
      slots_(static_cast<std::size_t>(2 * ranks)) {
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
      } catch (const Stopped&) {
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure) failure = std::current_exception();
        stopped_ = true;
        changed_.notify_all();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  require(!stopped_, "loopback ring: a rank left in the middle of a hop");
}

void LoopbackWorld::require_running() const {
  if (stopped_) throw Stopped();
}

void LoopbackWorld::wait(std::unique_lock<std::mutex>& lock, const std::string& what, auto ready) {
  const bool in_time = changed_.wait_for(lock, timeout_, [&] { return stopped_ || ready(); });
  require_running();
  require(in_time, "loopback ring: " + what + " took more than " + std::to_string(timeout_.count()) + " s");
}

LoopbackTransport::~LoopbackTransport() {
  if (!lent_) return;
  const std::lock_guard lock(world_.mutex_);
  world_.stopped_ = true;  // from here on no rank reads the parcel
  world_.changed_.notify_all();
}

void LoopbackTransport::start(const Exchange& exchange) {
  pending_.start(exchange);
  const auto length = static_cast<Index>(exchange.send.size());
  auto flight = std::chrono::duration<double>(world_.link_.latency);
  if (world_.link_.bytes_per_second > 0)
    flight += std::chrono::duration<double>(static_cast<double>(length) / world_.link_.bytes_per_second);
  {
    const std::lock_guard lock(world_.mutex_);
    auto& slot = world_.slot(ring_.next(), channel_);
    require(!slot.full, "loopback ring: a parcel was sent before the one before it was received");
    slot = {exchange.send,
            LoopbackWorld::Clock::now() + std::chrono::duration_cast<LoopbackWorld::Clock::duration>(flight),
            true};
    lent_ = true;
  }
  world_.changed_.notify_all();
  ++statistics_.messages_sent;
  statistics_.bytes_sent += length;
}

void LoopbackTransport::finish() {
  const auto begin = LoopbackWorld::Clock::now();
  const Exchange& exchange = pending_.finish();
  auto& own = world_.slot(ring_.rank, channel_);
  auto& sent = world_.slot(ring_.next(), channel_);
  const auto name = [](int rank) { return "rank " + std::to_string(rank); };

  std::unique_lock lock(world_.mutex_);
  world_.wait(lock, name(ring_.rank) + " waiting for " + name(ring_.prev()), [&] { return own.full; });
  lock.unlock();
  std::this_thread::sleep_until(own.arrival);
  lock.lock();
  world_.require_running();
  require(own.bytes.size() == exchange.receive.size(), "loopback ring: a parcel of another length arrived");
  world_.copy_(own.bytes, exchange.receive);
  own.full = false;
  world_.changed_.notify_all();
  world_.wait(lock, name(ring_.next()) + " taking the parcel of " + name(ring_.rank),
              [&] { return !sent.full; });
  lent_ = false;

  statistics_.bytes_received += static_cast<Index>(exchange.receive.size());
  statistics_.exposed_seconds += std::chrono::duration<double>(LoopbackWorld::Clock::now() - begin).count();
}

}  // namespace ring_attention
