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

/// A message that a rank has sent.
struct LoopbackWorld::Sent : Peers::Message {
  Sent(LoopbackWorld& all, int sender, int receiver, int number)
      : world(all), from(sender), to(receiver), tag(number) {}
  ~Sent() override {
    if (!taken) world.stop(from);  // the receiver may still read the bytes, which the caller frees now
  }
  void wait() override {
    world.wait_until_taken(from, to, tag);
    taken = true;
  }

  LoopbackWorld& world;
  int from, to, tag;
  bool taken = false;
};

class LoopbackWorld::End : public Peers {
 public:
  End(LoopbackWorld& world, int rank) : world_(world), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return world_.ranks(); }
  [[nodiscard]] std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
    world_.send(rank_, to, tag, bytes);
    return std::make_unique<Sent>(world_, rank_, to, tag);
  }
  [[nodiscard]] std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    struct Received : Message {
      explicit Received(std::function<void()> how) : take(std::move(how)) {}
      void wait() override { take(); }
      std::function<void()> take;
    };
    return std::make_unique<Received>([=, this] { world_.receive(from, rank_, tag, bytes); });
  }
  void unite(std::span<std::byte> bytes) override {
    const std::vector<std::byte> mine(bytes.begin(), bytes.end());
    std::vector<std::byte> theirs(bytes.size());
    std::vector<std::unique_ptr<Message>> sent;
    for (int to = 0; to < size(); ++to) sent.push_back(send(mine, to, collective_tag));
    for (int from = 0; from < size(); ++from) {
      world_.receive(from, rank_, collective_tag, theirs);
      std::ranges::transform(bytes, theirs, bytes.begin(), std::bit_or());
    }
    for (const auto& message : sent) message->wait();
  }

 private:
  LoopbackWorld& world_;
  int rank_;
};

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
      slots_(static_cast<std::size_t>(tags * ranks * ranks)),
      left_(static_cast<std::size_t>(tags * ranks)) {
  require(ranks >= 1, "a ring has at least one rank");
  for (int rank = 0; rank < ranks; ++rank) peers_.push_back(std::make_unique<End>(*this, rank));
}

void LoopbackWorld::run(const std::function<void(int)>& body) {
  slots_.assign(slots_.size(), Slot{});  // removes messages of a run that failed
  stopped_by_.reset();
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
          // A message that it leaves behind may have stopped the others before this.
          if (!failure || stopped_by_ == rank) failure = std::current_exception();
        }
        stop(rank);
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  require(!stopped_by_, "loopback ring: a rank left in the middle of a hop");
}

void LoopbackWorld::require_running() const {
  if (stopped_by_) throw Stopped();
}

void LoopbackWorld::wait(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, auto ready) {
  const bool in_time = changed_[static_cast<std::size_t>(rank)].wait_for(
      lock, timeout_, [&] { return stopped_by_ || ready(); });
  require_running();
  require(in_time, "loopback ring: " + what + " took more than " + std::to_string(timeout_.count()) + " s");
}

void LoopbackWorld::stop(int rank) {
  const std::lock_guard lock(mutex_);
  if (!stopped_by_) stopped_by_ = rank;
  for (std::condition_variable& changed : changed_) changed.notify_one();
}

void LoopbackWorld::send(int from, int to, int tag, std::span<const std::byte> bytes) {
  const auto passes = [](auto seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  {
    const std::lock_guard lock(mutex_);
    Slot& sent = slot(from, to, tag);
    require(!sent.full, "loopback ring: a parcel was sent before the previous one was received");
    const int queue = tag * ranks_ + from;
    Clock::time_point& left = left_[static_cast<std::size_t>(queue)];
    left = std::max(left, Clock::now());
    if (link_.bytes_per_second > 0)
      left += passes(static_cast<double>(bytes.size()) / link_.bytes_per_second);
    sent = {bytes, left + passes(link_.latency), true};
  }
  wake(to);
}

void LoopbackWorld::receive(int from, int to, int tag, std::span<std::byte> bytes) {
  Slot& sent = slot(from, to, tag);
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

void LoopbackWorld::wait_until_taken(int from, int to, int tag) {
  const Slot& sent = slot(from, to, tag);
  std::unique_lock lock(mutex_);
  wait(lock, from, "rank " + std::to_string(to) + " taking the parcel of rank " + std::to_string(from),
       [&] { return !sent.full; });
}

}  // namespace ring_attention
