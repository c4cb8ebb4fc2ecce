/// \file
/// `Line`: an all-to-all of any kind, so that code above it is compiled once.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/parallel/all_to_all.hpp"

namespace ring_attention {

/// One rank's end of a line of ranks. Copies share the end. The default is a line of one rank.
class Line {
 public:
  Line() = default;
  /// Takes `link`, which the line owns.
  template <AllToAll Link>
  explicit Line(std::shared_ptr<Link> link) : end_(std::make_shared<Of<Link>>(std::move(link))) {}

  [[nodiscard]] int rank() const { return end_ ? end_->rank() : 0; }
  [[nodiscard]] int size() const { return end_ ? end_->size() : 1; }
  [[nodiscard]] TransportStatistics statistics() const {
    return end_ ? end_->statistics() : TransportStatistics{};
  }
  void exchange(const Pieces& pieces) const;

 private:
  struct End {
    virtual ~End() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    [[nodiscard]] virtual TransportStatistics statistics() const = 0;
    virtual void exchange(const Pieces& pieces) = 0;
  };
  template <class Link>
  struct Of final : End {
    explicit Of(std::shared_ptr<Link> wrapped) : link(std::move(wrapped)) {}
    [[nodiscard]] int rank() const override { return link->rank(); }
    [[nodiscard]] int size() const override { return link->size(); }
    [[nodiscard]] TransportStatistics statistics() const override { return link->statistics(); }
    void exchange(const Pieces& pieces) override { link->exchange(pieces); }
    std::shared_ptr<Link> link;
  };

  std::shared_ptr<End> end_;
};

static_assert(AllToAll<Line>);

}  // namespace ring_attention
