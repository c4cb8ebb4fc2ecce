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
  /// The links between arrays of the host, and for which options they are.
  struct Host {
    int ulysses;
    TransportKind kind;
    std::unique_ptr<Links> links;
  };
  /// The caller's progress as an observer.
  struct ProgressObserver : Observer {
    explicit ProgressObserver(const Options& of) : options(of) {}
    void beats() override {
      if (options.progress) options.progress();
    }
    void arrived(const ObservedHop&, double) override { beats(); }
    const Options& options;
  };
  /// What it keeps for arrays of a GPU.
  struct Gpu {
    virtual ~Gpu() = default;
    virtual void wait() = 0;
  };

  AttentionState(std::unique_ptr<AttentionRanks> who, Options how);

  /// The observers of one call: those of the options, and their progress.
  [[nodiscard]] Observers observers() {
    Observers all = options.observers;
    if (options.progress) all.push_back(&progress);
    return all;
  }

  /// Returns when all ranks make this call: their arguments are right and belong together, and every rank can have the memory.
  /// One unite() of all ranks; more only to explain an error. \throws AgreedError otherwise, on all ranks
  /// \param check_more  what arrays of a GPU need; it sends nothing
  /// \returns true unless every rank has completed() such a call before
  template <class T>
  bool agreed(const Call<T>& call, const std::function<void(const Check&)>& check_more);
  /// For arrays of the host.
  template <class T>
  void agreed(const Call<T>& call);
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
  ProgressObserver progress{options};
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
