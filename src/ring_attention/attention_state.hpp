/// \file
/// `AttentionState`: what an Attention keeps between calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/call_arguments.hpp"
#include "ring_attention/parallel/context_parallel.hpp"

namespace ring_attention {

struct AttentionState {
  /// The links between arrays of the host, and for how many ranks that share heads they are.
  struct Host {
    int ulysses;
    std::unique_ptr<Links> links;
  };
  /// What it keeps for arrays of a GPU.
  struct Gpu {
    virtual ~Gpu() = default;
    virtual void wait() = 0;
  };

  AttentionState(std::unique_ptr<AttentionRanks> who, Options how);

  /// Returns when all ranks make this call: their arguments are right and belong together.
  /// One unite() of all ranks; more only to explain an error. \throws AgreedError otherwise, on all ranks
  /// \param check_more  what arrays of a GPU need; it sends nothing
  /// \returns true unless every rank has completed() such a call before
  template <class T>
  bool agreed(const Call<T>& call, const std::function<void(const Check&)>& check_more = [](const Check&) {});
  template <class T>
  void completed(const Call<T>& call) {
    constexpr std::size_t most_calls = 256;  // those with a dropout differ in every step
    if (completed_calls.size() >= most_calls) completed_calls.clear();
    completed_calls.insert(shared_arguments(call));
  }

  /// \throws InputError when the partition cannot have these ranks
  template <class T>
  [[nodiscard]] SharedAttention shared_by(const Call<T>& call) const {
    return {call.grid(ranks->rank(), ranks->size()),
            options.partition == Partition::all_gather,
            call.placement,
            call.q.shape().with_seq(call.placement.queries.seq()),
            {call.k.shape().with_seq(call.placement.keys.seq()), call.v.shape().dim},
            call.scoring,
            false,
            call.term_shapes()};
  }

  std::unique_ptr<AttentionRanks> ranks;
  Options options;
  std::unordered_set<std::string> completed_calls;
  std::optional<Host> host;  ///< from the first call with arrays of the host on
  std::unique_ptr<Gpu> gpu;  ///< from the first call with arrays of a GPU on
};

template <class T>
[[nodiscard]] Call<T> call_of(const char* name, const AttentionState& state, const AttentionArrays<T>& arrays,
                              const Placements& placement, const Scoring& scoring) {
  return {name, arrays.q, arrays.k, arrays.v, placement, scoring, state.options, arrays.terms()};
}

}  // namespace ring_attention
