/// \file
/// `AttentionState`: what an Attention keeps between calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "ring_attention/attention/views.hpp"
#include "ring_attention/call_arguments.hpp"
#include "ring_attention/parallel/context_parallel.hpp"

namespace ring_attention {

struct AttentionState {
  /// The links between arrays of the host, and for which options they are.
  struct Host {
    Host(const Communicator& comm, const RankGrid& grid, TransportKind transport)
        : ulysses(grid.ulysses.size), kind(transport), links(comm, grid.ulysses, grid.ring, transport) {}

    int ulysses;
    TransportKind kind;
    MpiLinks links;
  };
  /// The caller's progress as an observer.
  struct ProgressObserver : Observer {
    explicit ProgressObserver(const Options& of) : options(of) {}
    void beats() override {
      if (options.progress) options.progress();
    }
    void arrived(const Hop&, double) override { beats(); }
    const Options& options;
  };
  /// What it keeps for arrays of a GPU.
  struct Gpu {
    virtual ~Gpu() = default;
    virtual void wait() = 0;
  };

  /// \throws InputError: see Attention
  AttentionState(MPI_Comm caller, Options how);

  /// Those of the options, for one call.
  [[nodiscard]] Observers observers() {
    Observers all = options.observers;
    if (options.progress) all.push_back(&progress);
    return all;
  }

  /// Checks the arguments of all ranks, and calls check_more(check), which sends nothing. When one rank's are wrong, all
  /// throw AgreedError. One MPI_Allreduce; more only to explain an error.
  /// \returns true unless every rank has completed() such a call before
  template <class T>
  [[nodiscard]] bool check_together(const Call<T>& call, const std::function<void(const Check&)>& check_more);
  template <class T>
  void completed(const Call<T>& call) {
    constexpr std::size_t most_calls = 256;  // those with a dropout differ in every step
    if (completed_calls.size() >= most_calls) completed_calls.clear();
    completed_calls.insert(shared_arguments(call));
  }

  /// \throws InputError when the partition cannot have these ranks
  template <class T>
  [[nodiscard]] SharedAttention shared_by(const Call<T>& call) const {
    return {call.grid(comm.rank(), comm.size()),
            options.partition == Partition::all_gather,
            call.placement,
            call.q.shape(),
            call.k.shape(),
            call.scoring,
            false,
            call.term_shapes()};
  }

  Communicator comm;
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

/// The arrays of a backward besides q, k, v and the terms.
template <class T>
void check_backward(const Check& check, const Call<T>& call, const ResultViews<const SumOf<T>>& result,
                    View<const T> grad_out) {
  const Shape& q = call.q.shape();
  check.array("result.out", result.out, q);
  check.array("result.lse", result.lse, q.per_row());
  check.array("grad_out", grad_out, q);
}

/// Where results go.
template <class T>
void check_results(const Check& check, const Call<T>& call, const ResultViews<SumOf<T>>& to) {
  check.array("out", to.out, call.q.shape());
  check.array("lse", to.lse, call.q.shape().per_row());
}
template <class T>
void check_results(const Check& check, const Call<T>& call, const GradientViews<SumOf<T>>& to) {
  check.array("dq", to.q, call.q.shape());
  check.array("dk", to.k, call.k.shape());
  check.array("dv", to.v, call.v.shape());
  each_term(
      [&](const View<SumOf<T>>& gradient, const auto& array, const std::string& name) {
        if (array)
          check.array("d" + name, gradient, array->shape());
        else
          check(gradient.size() == 0,
                "d" + name + " is " + to_string(gradient.shape()) + ", and there is no " + name);
      },
      to.terms(), call.terms, term_names);
}

}  // namespace ring_attention
