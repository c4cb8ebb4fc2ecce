#include "ring_attention/ring_attention.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "ring_attention/attention/sink.hpp"
#include "ring_attention/call_arguments.hpp"
#include "ring_attention/parallel/context_memory.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/observed_links.hpp"

namespace ring_attention {
namespace {

/// While it lives, errors of the caller's communicator return: it may be one that ends the process.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_get_errhandler(comm, &before_);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, before_);
    MPI_Errhandler_free(&before_);
  }

 private:
  MPI_Comm comm_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// The ring's own communicator.
Communicator duplicate(MPI_Comm caller) {
  int initialised = 0, finalised = 0, between_groups = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised == 0 || finalised != 0) throw InputError("MPI is not running: call MPI_Init first");
  if (caller == MPI_COMM_NULL) throw InputError("the communicator is MPI_COMM_NULL");
  const ErrorsReturn guard(caller);
  check_mpi(MPI_Comm_test_inter(caller, &between_groups));
  if (between_groups != 0) throw InputError("a ring needs an intracommunicator: merge the two groups");
  return Communicator(caller);
}

void check_options(const Check& check, const Options& options) {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level));
  check(options.threads >= 1, "options.threads is at least 1");
  check(options.threads == 1 || level >= MPI_THREAD_FUNNELED,
        "options.threads above 1 needs MPI_THREAD_FUNNELED: start MPI with MPI_Init_thread");
  check(std::ranges::count(available_isas(), options.isa) > 0,
        "options.isa is not available on this machine");
}

/// Checks the arguments of all ranks, and calls check_more(check). When one rank's are wrong, all throw AgreedError.
template <class T>
void check_together(const Communicator& comm, const Call<T>& call,
                    const std::function<void(const Check&)>& check_more) {
  const std::string mine = shared_arguments(call);
  std::string of_rank_0 = mine;
  broadcast(comm, of_rank_0);
  agree(comm, [&] {
    const Check check(comm.rank());
    check_arguments(check, comm.rank(), comm.size(), call);
    check_options(check, call.options);
    require_same_arguments(comm.rank(), mine, of_rank_0);
    check_more(check);
  });
}

/// The links of a call. They call the caller's progress.
struct CallLinks {
  struct Report : LinkObserver {
    explicit Report(const Progress& progress) : report(progress) {}
    void computes() override {
      if (report) report();
    }
    void arrived(Channel) override { computes(); }
    const Progress& report;
  };

  CallLinks(const Communicator& comm, const RankGrid& grid, const Options& options)
      : mpi(comm, grid.ulysses, grid.ring, options.transport),
        report(options.progress),
        observed(mpi, report) {}

  MpiLinks mpi;
  Report report;
  ObservedLinks observed;
};

template <class T>
SharedAttention shared_by(const Communicator& comm, const Call<T>& call) {
  return {call.grid(comm.rank(), comm.size()),
          call.options.partition == Partition::all_gather,
          call.placement,
          call.q.shape(),
          call.k.shape(),
          call.scoring};
}

/// Where ranks share heads, messages come before most of the memory is allocated.
/// \throws std::bad_alloc unless this rank can have all of it
template <class T>
void require_memory(const SharedAttention& shared, const Call<T>& call, bool gradients) {
  if (shared.grid.ulysses.size == 1) return;
  constexpr Index bytes = sizeof(T);
  Shape bias =
      call.bias.shape();  // in the layout that is computed: itself, its gradient, and each on its way
  if (bias.heads > 1) bias.heads /= shared.grid.ulysses.size;
  const Index bias_arrays = call.has_bias() ? (gradients ? 5 : 3) : 0;
  if (!allocation::available(context_bytes(shared, gradients, {bytes, bytes, bytes}) +
                             bias_arrays * bias.with_seq(shared.tokens.queries.max_tokens()).size() * bytes))
    throw std::bad_alloc();
}

template <class T>
AttentionResult<T> run_forward(MPI_Comm caller, const Call<T>& call, const Device<T>& device) {
  const Communicator comm = duplicate(caller);
  check_together<T>(comm, call, [&](const Check&) { require_memory(shared_by(comm, call), call, false); });
  CallLinks links(comm, call.grid(comm.rank(), comm.size()), call.options);
  ContextParallel<T> attention(device, links.observed, shared_by(comm, call));
  return attention.forward(call.q, call.k, call.v, call.bias,
                           [&](const std::function<void()>& step) { agree(comm, step); });
}

template <class T>
Gradients<T> run_backward(MPI_Comm caller, const Call<T>& call, const AttentionResult<T>& result,
                          View<const T> grad_out) {
  const Communicator comm = duplicate(caller);
  check_together<T>(comm, call, [&](const Check& check) {
    const Shape& q = call.q.shape();
    check.array("result.out", result.out.view(), q);
    check.array("result.lse", result.lse.view(), q.per_row());
    check.array("grad_out", grad_out, q);
    require_memory(shared_by(comm, call), call, true);
  });
  const CpuDevice<T> device({call.options.threads, call.options.isa});
  CallLinks links(comm, call.grid(comm.rank(), comm.size()), call.options);
  ContextParallel<T> attention(device, links.observed, shared_by(comm, call));
  const BackwardInputs<T> inputs{call.q, result.out, result.lse, grad_out, call.bias};
  Gradients<T> gradients = attention.backward(inputs, call.k, call.v,
                                              [&](const std::function<void()>& step) { agree(comm, step); });
  gradients.sinks = sink_gradient(inputs, call.scoring.sinks);
  sum_over_ranks(comm, std::span<double>(gradients.sinks));
  return gradients;
}

/// The cores of this rank.
template <class T>
AttentionResult<T> run_fast_forward(MPI_Comm comm, const Call<T>& call) {
  return run_forward<T>(comm, call, CpuDevice<T>({call.options.threads, call.options.isa}));
}

/// A function of the caller as a device.
template <class T>
class FunctionDevice : public CpuDevice<T> {
 public:
  explicit FunctionDevice(const AttentionFunction<T>& function) : function_(function) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T>,
                                                   const ExpectedKeys&) const override {
    if (!function_) throw InputError("the function of forward is empty");
    auto engine = std::make_unique<FunctionEngine<T>>(scoring, function_);
    engine->begin(q, ranges);
    return engine;
  }

 private:
  const AttentionFunction<T>& function_;
};

}  // namespace

AttentionResult<float> forward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                               const Placements& placement, const Scoring& scoring, const Options& options,
                               View<const float> bias) {
  return run_fast_forward<float>(comm, {"forward", q, k, v, placement, scoring, options, bias});
}

AttentionResult<double> forward(MPI_Comm comm, View<const double> q, View<const double> k,
                                View<const double> v, const Placements& placement, const Scoring& scoring,
                                const Options& options, View<const double> bias) {
  return run_fast_forward<double>(comm, {"forward", q, k, v, placement, scoring, options, bias});
}

AttentionResult<float> forward(MPI_Comm comm, const AttentionFunction<float>& kernel, View<const float> q,
                               View<const float> k, View<const float> v, const Placements& placement,
                               const Scoring& scoring, const Options& options) {
  return run_forward<float>(comm, {"forward with a function", q, k, v, placement, scoring, options, {}},
                            FunctionDevice<float>(kernel));
}

AttentionResult<double> forward(MPI_Comm comm, const AttentionFunction<double>& kernel, View<const double> q,
                                View<const double> k, View<const double> v, const Placements& placement,
                                const Scoring& scoring, const Options& options) {
  return run_forward<double>(comm, {"forward with a function", q, k, v, placement, scoring, options, {}},
                             FunctionDevice<double>(kernel));
}

Gradients<float> backward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                          const AttentionResult<float>& result, View<const float> grad_out,
                          const Placements& placement, const Scoring& scoring, const Options& options,
                          View<const float> bias) {
  return run_backward<float>(comm, {"backward", q, k, v, placement, scoring, options, bias}, result,
                             grad_out);
}

Gradients<double> backward(MPI_Comm comm, View<const double> q, View<const double> k, View<const double> v,
                           const AttentionResult<double>& result, View<const double> grad_out,
                           const Placements& placement, const Scoring& scoring, const Options& options,
                           View<const double> bias) {
  return run_backward<double>(comm, {"backward", q, k, v, placement, scoring, options, bias}, result,
                              grad_out);
}

}  // namespace ring_attention
