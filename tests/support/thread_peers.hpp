// Peers that are threads of this process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/peers.hpp"

namespace ring_attention::test {

/// The messages between the threads of a group, by sender, receiver and tag. The receiver reads the sender's memory.
class Mail {
 public:
  using Key = std::tuple<int, int, int>;

  explicit Mail(int size) : ranks(size) {}

  /// \returns the number of the message
  std::size_t put(const Key& key, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    Box& box = boxes_[key];
    box.letters.push_back(bytes);
    changed_.notify_all();
    return box.taken + box.letters.size();
  }
  void take(const Key& key, std::span<std::byte> bytes) {
    std::unique_lock lock(mutex_);
    Box& box = boxes_[key];
    wait(lock, [&] { return !box.letters.empty(); });
    require(box.letters.front().size() == bytes.size(), "a message has another length");
    std::ranges::copy(box.letters.front(), bytes.begin());
    box.letters.pop_front();
    ++box.taken;
    changed_.notify_all();
  }
  void wait_until_taken(const Key& key, std::size_t number) {
    std::unique_lock lock(mutex_);
    wait(lock, [&, &box = boxes_[key]] { return box.taken >= number; });
  }

  const int ranks;

 private:
  struct Box {
    std::deque<std::span<const std::byte>> letters;
    std::size_t taken = 0;
  };

  void wait(std::unique_lock<std::mutex>& lock, const auto& ready) {
    require(changed_.wait_for(lock, std::chrono::seconds(10), ready), "a rank waits for a message");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Box> boxes_;
};

class ThreadPeers : public Peers {
 public:
  ThreadPeers(std::shared_ptr<Mail> mail, int rank) : mail_(std::move(mail)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return mail_->ranks; }
  [[nodiscard]] std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
    const Mail::Key key{rank_, to, tag};
    return std::make_unique<Letter>(
        [mail = mail_, key, number = mail_->put(key, bytes)] { mail->wait_until_taken(key, number); });
  }
  [[nodiscard]] std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    return std::make_unique<Letter>(
        [mail = mail_, key = Mail::Key{from, rank_, tag}, bytes] { mail->take(key, bytes); });
  }
  void unite(std::span<std::byte> bytes) override {
    constexpr int tag = 3;
    const std::vector<std::byte> mine(bytes.begin(), bytes.end());
    std::vector<std::byte> theirs(bytes.size());
    std::vector<std::unique_ptr<Message>> sent;
    for (int other = 0; other < size(); ++other) sent.push_back(send(mine, other, tag));
    for (int other = 0; other < size(); ++other) {
      receive(theirs, other, tag)->wait();
      std::ranges::transform(bytes, theirs, bytes.begin(), std::bit_or());
    }
    for (const auto& message : sent) message->wait();
  }

 private:
  struct Letter : Message {
    explicit Letter(std::function<void()> how) : arrive(std::move(how)) {}
    void wait() override { arrive(); }
    std::function<void()> arrive;
  };

  std::shared_ptr<Mail> mail_;
  int rank_;
};

}  // namespace ring_attention::test
