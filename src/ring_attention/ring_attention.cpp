#include "ring_attention/ring_attention.hpp"

#include <algorithm>

#include "ring_attention/call_job.hpp"
#include "ring_attention/parallel/head_layout.hpp"

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

/// Checks the arguments of all ranks, then calls prepare(check), which allocates. When one rank cannot, all throw
/// AgreedError.
template <class T, class Prepare>
void begin_together(const Communicator& comm, const Call<T>& call, Prepare prepare) {
  const std::string mine = shared_arguments(call);
  std::string of_rank_0 = mine;
  broadcast(comm, of_rank_0);
  agree(comm, [&] {
    const Check check(comm.rank());
    check_arguments(check, comm.rank(), comm.size(), call);
    check_options(check, call.options);
    require_same_arguments(comm.rank(), mine, of_rank_0);
    prepare(check);
  });
}

/// The arguments of a call in the layout that is computed, and the arrays that they are views of.
template <class T>
struct CallInHeads {
  CallInHeads(const HeadLayout<MpiAllToAll>& layout, const Call<T>& call)
      : q(layout.queries_to_heads(call.q)),
        k(layout.keys_to_heads(call.k)),
        v(layout.keys_to_heads(call.v)),
        bias(call.has_bias() ? layout.bias_to_heads(call.bias) : Tensor<T>()),
        scoring(layout.scoring(call.scoring)),
        view{call.name, q, k, v, call.placement, scoring, call.options, bias} {}
  CallInHeads(const CallInHeads&) = delete;
  CallInHeads& operator=(const CallInHeads&) = delete;

  Tensor<T> q, k, v, bias;
  Scoring scoring;
  Call<T> view;
};

/// A rank of a call whose ranks share heads: its place, its two lines and its layouts. Collective.
template <class T>
struct SharedHeads {
  SharedHeads(const Communicator& comm, const Call<T>& call)
      : place(call.place(comm.rank(), comm.size())),
        lines(comm, place),
        link(lines.ulysses()),
        layout(link, place, call.placement.queries, call.placement.keys, call.q.shape().heads,
               call.k.shape().heads) {}

  HybridPlace place;
  GridLines lines;
  MpiAllToAll link;
  HeadLayout<MpiAllToAll> layout;
};

/// \param arrays_of_q, arrays_of_kv  the most arrays that it has at a time like q and like k in the layout that is computed
/// \throws std::bad_alloc unless this rank can have the memory of a call whose ranks share heads
template <class T>
void require_memory(const Call<T>& call, const HybridPlace& place, Index arrays_of_q, Index arrays_of_kv) {
  const auto bytes = [](Index arrays, const Shape& shape) {
    return arrays * shape.size() * static_cast<Index>(sizeof(T));
  };
  const HeadShare share(call.q.shape().heads, call.k.shape().heads, place.ulysses.size);
  const auto of_rank = [&](Shape shape, const std::vector<Interval>& heads, const Placement& tokens) {
    shape.heads = heads.front().end;
    return shape.with_seq(tokens.max_tokens());
  };
  Shape bias = call.bias.shape();
  if (bias.heads > 1) bias.heads /= place.ulysses.size;
  if (!allocation::available(
          bytes(arrays_of_q, of_rank(call.q.shape(), share.query, call.placement.queries)) +
          bytes(arrays_of_kv, of_rank(call.k.shape(), share.kv, call.placement.keys)) +
          bytes(5, bias.with_seq(call.has_bias() ? call.placement.queries.max_tokens() : 0))))
    throw std::bad_alloc();
}

/// \param begin  begin(call, ranges) -> an engine that has begun with the queries of the call, which are at these ranges
template <class T, class Begin>
AttentionResult<T> run_forward(MPI_Comm caller, const Call<T>& call, Begin begin) {
  const Communicator comm = duplicate(caller);
  std::optional<ForwardJob<std::invoke_result_t<Begin, const Call<T>&, TokenRanges>>> job;
  const auto prepare = [&](const Call<T>& of_heads, int rank) {
    job.emplace(of_heads, rank, begin(of_heads, of_heads.placement.queries.ranges(rank)));
  };
  begin_together(comm, call, [&](const Check&) {
    const HybridPlace place = call.place(comm.rank(), comm.size());
    if (place.ulysses.size == 1)
      prepare(call, comm.rank());
    else
      require_memory(call, place, 5, 6);
  });
  if (job) return job->run(comm);

  SharedHeads<T> shared(comm, call);
  CallInHeads<T> heads(shared.layout, call);
  agree(comm, [&] { prepare(heads.view, shared.lines.ring().rank()); });
  heads.k = {};  // the job has copies
  heads.v = {};
  const AttentionResult<T> result = job->run(shared.lines.ring());
  job.reset();
  return {shared.layout.queries_to_sequence(result.out.view()),
          shared.layout.queries_to_sequence(result.lse.view())};
}

template <class T>
AttentionResult<T> run_fast_forward(MPI_Comm comm, const Call<T>& of_caller) {
  return run_forward<T>(comm, of_caller, [](const Call<T>& call, TokenRanges ranges) {
    CpuEngine<T> engine(call.scoring, CpuOptions{call.options.threads, call.options.isa});
    engine.begin(call.q, std::move(ranges), call.bias);
    return engine;
  });
}

template <class T>
AttentionResult<T> run_function(MPI_Comm comm, const AttentionFunction<T>& kernel, const Call<T>& of_caller) {
  return run_forward<T>(comm, of_caller, [&](const Call<T>& call, TokenRanges ranges) {
    if (!kernel) throw InputError("the function of forward is empty");
    FunctionEngine<T> engine(call.scoring, kernel);
    engine.begin(call.q, std::move(ranges));
    return engine;
  });
}

template <class T>
Gradients<T> run_backward(MPI_Comm caller, const Call<T>& call, const AttentionResult<T>& result,
                          View<const T> grad_out) {
  const Communicator comm = duplicate(caller);
  std::optional<BackwardJob<T>> job;
  begin_together(comm, call, [&](const Check& check) {
    const Shape& q = call.q.shape();
    check.array("result.out", result.out.view(), q);
    check.array("result.lse", result.lse.view(), q.per_row());
    check.array("grad_out", grad_out, q);
    const HybridPlace place = call.place(comm.rank(), comm.size());
    if (place.ulysses.size == 1)
      job.emplace(call, ForwardResult<T>{call.q, result.out, result.lse, grad_out, call.bias}, comm.rank());
    else
      require_memory(call, place, 8, 12);
  });
  Gradients<T> gradients;
  if (job) {
    gradients = job->run(comm);
  } else {
    SharedHeads<T> shared(comm, call);
    const auto& layout = shared.layout;
    CallInHeads<T> heads(layout, call);
    const Tensor<T> out = layout.queries_to_heads(result.out.view()),
                    lse = layout.queries_to_heads(result.lse.view()),
                    grad = layout.queries_to_heads(grad_out);
    agree(comm, [&] {
      job.emplace(heads.view, ForwardResult<T>{heads.q, out, lse, grad, heads.bias},
                  shared.lines.ring().rank());
    });
    heads.k = {};
    heads.v = {};
    const Gradients<T> of_heads = job->run(shared.lines.ring());
    job.reset();
    gradients = {layout.queries_to_sequence(of_heads.q.view()), layout.keys_to_sequence(of_heads.k.view()),
                 layout.keys_to_sequence(of_heads.v.view()),
                 call.has_bias() ? layout.bias_to_sequence(of_heads.bias.view(), call.bias.shape().heads)
                                 : Tensor<T>(),
                 layout.among_all(of_heads.sinks)};
  }
  sum_over_ranks(comm, std::span<double>(gradients.sinks));
  return gradients;
}

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
  return run_function<float>(comm, kernel,
                             {"forward with a function", q, k, v, placement, scoring, options, {}});
}

AttentionResult<double> forward(MPI_Comm comm, const AttentionFunction<double>& kernel, View<const double> q,
                                View<const double> k, View<const double> v, const Placements& placement,
                                const Scoring& scoring, const Options& options) {
  return run_function<double>(comm, kernel,
                              {"forward with a function", q, k, v, placement, scoring, options, {}});
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
