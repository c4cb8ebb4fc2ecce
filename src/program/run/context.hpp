/// \file
/// `RunContext`: what the parts of a run share, and what a rank holds and computes.
#pragma once

#include <algorithm>

#include "program/backend.hpp"
#include "program/run/check.hpp"
#include "program/run/input.hpp"
#include "ring_attention/parallel/head_layout.hpp"

namespace ring_attention {

/// The input, and which of its tokens and heads are this rank's. It holds all heads of a slice, and computes some heads of
/// a whole shard: the same, unless ranks share the heads.
struct RunContext {
  const Communicator& comm;
  const RunOptions& options;
  const RunInput& input;
  Activity& activity;
  HybridPlace place;
  GridLines lines{comm, place};
  Placement queries{placement_kind_named(options.placement), input.q().seq, place.ring.size};
  Placement keys{placement_kind_named(options.placement), input.kv().seq, place.ring.size};
  TokenRanges query_ranges = place.slice(queries), key_ranges = place.slice(keys);  // that it holds
  HeadShare heads{input.q().heads, input.kv().heads, place.ulysses.size};

  [[nodiscard]] bool shares_heads() const { return place.ulysses.size > 1; }
  [[nodiscard]] bool gathers() const { return options.partition() == Partition::all_gather; }
  /// This rank among those that K,V travel to.
  [[nodiscard]] Ring ring() const { return place.ring.ring(place.rank); }

  /// The heads of the bias that this rank computes with: [0, 1) of one that broadcasts over heads.
  [[nodiscard]] Interval bias_heads() const {
    return input.bias().heads == 1 ? Interval{0, 1} : own(heads.query);
  }

  /// What it computes.
  [[nodiscard]] Workload workload() const {
    const auto some = [](const Shape& all, const Interval& of_rank, const Placement& tokens) {
      return Shape{all.batch, of_rank.end - of_rank.begin, tokens.max_tokens(), all.dim};
    };
    Workload work{some(input.q(), own(heads.query), queries), some(input.kv(), own(heads.kv), keys),
                  input.scoring().of_heads(own(heads.query)), options.wants_gradients(),
                  input.bias().size() > 0 ? some(input.bias(), bias_heads(), queries) : Shape{}};
    work.besides = besides(work);
    if (options.check && work.gradients)  // dbias and its reference, in double
      work.check_bytes = 2 * static_cast<Index>(sizeof(double)) *
                         work.bias.with_seq(checked_rows(work.bias.seq, input.q().seq)).size();
    return work;
  }

 private:
  [[nodiscard]] const Interval& own(const std::vector<Interval>& of_ranks) const {
    return of_ranks[static_cast<std::size_t>(place.ulysses.index(place.rank))];
  }

  /// Ulysses: the second layout, K,V until the backward, and an array on its way. All-gather: the shards of all ranks in
  /// place of those of a parcel.
  [[nodiscard]] Index besides(const Workload& work) const {
    const Index q = work.q.size(), kv = work.kv.size(), ranks = place.ring.size;
    if (shares_heads()) return (work.gradients ? 4 * q + 2 * kv : 2 * q) + 2 * std::max(q, kv);
    return gathers() ? std::max<Index>(0, (2 * ranks - 4) + (work.gradients ? 4 * ranks - 8 : 0)) * kv : 0;
  }
};

}  // namespace ring_attention
