/// \file
/// `Choice`: what a visitor of the live page chooses, in the words of the page's address.
#pragma once

#include <string>

#include "live/page.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/ring/kv_ring.hpp"

namespace ring_attention::live {

struct Choice {
  int ranks = 0;
  Shape q, kv;
  Mask mask;
  PlacementKind placement = PlacementKind::contiguous;
  Division division = ring();
  bool backward = false;
  std::string mistake;  ///< an id of ring_mistakes(), or empty
  LinkSpeed link;
  double flops = 0;  ///< of a rank, a second

  /// \param address  `ranks=4&tokens=256&...`: all of the form's words, with values that the form allows
  /// \throws InputError when the page should not try it: a sentence. It estimates time and memory on a phone.
  explicit Choice(std::string_view address);

  /// The attention that all ranks share, from the place of one of them.
  [[nodiscard]] SharedAttention shared(int rank) const;

  /// Operations of a pair of a query and a key in one head: two products of `dim` terms, in a backward five.
  [[nodiscard]] double operations(bool of_backward) const {
    return (of_backward ? 10.0 : 4.0) * static_cast<double>(q.dim);
  }
  /// How many queries are compared with the reference: all up to 1024, or some.
  [[nodiscard]] Index checked_queries() const { return q.seq <= 1024 ? q.seq : 128; }
};

}  // namespace ring_attention::live
