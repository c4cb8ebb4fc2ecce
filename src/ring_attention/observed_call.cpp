#include "ring_attention/observed_call.hpp"

#include <utility>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/observed.hpp"

namespace ring_attention {
namespace {

void require_observers(const Observers& by) {
  for (const Observer* const one : by)
    if (one == nullptr) throw InputError("observed: an observer is a null pointer");
}

/// A device that tells the observers, and lives as long as it is used.
template <class T>
class OwnedDevice : public ObservedDevice<T, T> {
 public:
  OwnedDevice(std::shared_ptr<const Device<T>> device, const Observers& by)
      : ObservedDevice<T, T>(*device, by), device_(std::move(device)) {}

 private:
  std::shared_ptr<const Device<T>> device_;
};

template <class T>
std::shared_ptr<const Device<T>> owned_device(const std::shared_ptr<const Device<T>>& device,
                                              const Observers& by) {
  return device ? std::make_shared<OwnedDevice<T>>(device, by) : nullptr;
}

class ObservedRanks : public AttentionRanks {
 public:
  ObservedRanks(std::shared_ptr<AttentionRanks> ranks, Observers by)
      : ranks_(std::move(ranks)), by_(std::move(by)) {}

  [[nodiscard]] AllToAll& all() override { return ranks_->all(); }
  void unite(std::span<std::byte> bytes) override { ranks_->unite(bytes); }
  [[nodiscard]] bool may_have_threads() const override { return ranks_->may_have_threads(); }
  [[nodiscard]] std::unique_ptr<Links> make_links(const RankGrid& grid) override {
    return ranks_->make_links(grid);
  }
  /// The links that the ranks keep, observed.
  [[nodiscard]] Links& links(const RankGrid& grid) override {
    links_ = std::make_unique<ObservedLinks>(ranks_->links(grid), by_, grid);
    return *links_;
  }

 private:
  std::shared_ptr<AttentionRanks> ranks_;
  Observers by_;
  std::unique_ptr<Links> links_;
};

}  // namespace

Processor observed(const Processor& processor, const Observers& by) {
  require_observers(by);
  return {owned_device(processor.floats, by), owned_device(processor.doubles, by)};
}

std::shared_ptr<AttentionRanks> observed(std::shared_ptr<AttentionRanks> ranks, Observers by) {
  require_observers(by);
  return std::make_shared<ObservedRanks>(std::move(ranks), std::move(by));
}

}  // namespace ring_attention
