#include "ring_attention/ring_attention.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <type_traits>

#include "ring_attention/call_arguments.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

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

/// Calls run(the type of the transport). A failure can leave messages under way, and MPI cannot take a send back: the
/// parcels, which MPI may still read and fill, then live as long as the process.
void with_transport(TransportKind kind, std::initializer_list<std::shared_ptr<void>> parcels, auto run) {
  try {
    if (kind == TransportKind::overlapped)
      run(std::type_identity<OverlappedTransport>{});
    else
      run(std::type_identity<OddEvenTransport>{});
  } catch (...) {
    static std::mutex mutex;
    static std::vector<std::shared_ptr<void>> kept;
    const std::lock_guard lock(mutex);
    kept.insert(kept.end(), parcels);
    throw;
  }
}

template <class T>
using SharedParcel = std::shared_ptr<KvParcel<T>>;

/// This rank's K,V where messages can take them.
template <class T>
SharedParcel<T> kv_parcel(const Call<T>& call, int rank) {
  auto parcel = std::make_shared<KvParcel<T>>(call.k.shape(), call.placement.keys, rank);
  std::ranges::copy(call.k.elements(), parcel->k().data());
  std::ranges::copy(call.v.elements(), parcel->v().data());
  return parcel;
}

template <class T, class Engine>
AttentionResult<T> run_forward(MPI_Comm caller, const Call<T>& call) {
  const Communicator comm = duplicate(caller);
  SharedParcel<T> kv;
  std::optional<Engine> engine;
  begin_together(comm, call, [&](const Check&) {
    kv = kv_parcel(call, comm.rank());
    engine.emplace(make_engine<Engine>(call.scoring, 64, {call.options.threads, call.options.isa}));
    engine->begin(call.q, call.placement.queries.ranges(comm.rank()), call.bias);
  });
  with_transport(call.options.transport, {kv}, [&]<class Link>(std::type_identity<Link>) {
    Link transport(comm);
    ring_forward(*engine, transport, *kv);
  });
  return engine->finish();
}

template <class T, class Engine>
Gradients<T> run_backward(MPI_Comm caller, const Call<T>& call, const AttentionResult<T>& result,
                          View<const T> grad_out) {
  const Communicator comm = duplicate(caller);
  SharedParcel<T> kv, sums;
  std::optional<Engine> engine;
  const ForwardResult<T> forward{call.q, result.out, result.lse, grad_out, call.bias};
  begin_together(comm, call, [&](const Check& check) {
    const Shape& q = call.q.shape();
    check.array("result.out", result.out.view(), q);
    check.array("result.lse", result.lse.view(), q.per_row());
    check.array("grad_out", grad_out, q);
    kv = kv_parcel(call, comm.rank());
    sums = std::make_shared<KvParcel<T>>(call.k.shape(), call.placement.keys, comm.rank());
    engine.emplace(make_engine<Engine>(call.scoring, 64, {call.options.threads, call.options.isa}));
    engine->begin(forward, call.placement.queries.ranges(comm.rank()));
    (void)sums->spare_buffer();  // the ring takes one, too: a rank without memory for it is found here
  });
  with_transport(call.options.transport, {kv, sums}, [&]<class Link>(std::type_identity<Link>) {
    Link kv_transport(comm, 0), gradient_transport(comm, 1);
    ring_backward(*engine, kv_transport, gradient_transport, *kv, *sums);
  });
  kv.reset();
  std::vector<double> sinks = sink_gradient(forward, call.scoring.sinks);
  sum_over_ranks(comm, std::span<double>(sinks));
  return {engine->finish(), converted<T>(sums->k()), converted<T>(sums->v()), engine->bias_gradient(),
          std::move(sinks)};
}

/// Calls run(two types): the engines that compute. The fast ones take no bias and no dropout.
template <class T, class Run>
auto with_engines(const Call<T>& call, Run run) {
  if (call.bias.size() > 0 || call.scoring.dropout.drops())
    return run(std::type_identity<BlockwiseEngine<T>>{}, std::type_identity<BlockwiseBackward<T>>{});
  return run(std::type_identity<CpuEngine<T>>{}, std::type_identity<CpuBackward<T>>{});
}

template <class T>
AttentionResult<T> attend(MPI_Comm comm, const Call<T>& call) {
  return with_engines(call, [&]<class Forward>(std::type_identity<Forward>, auto) {
    return run_forward<T, Forward>(comm, call);
  });
}

template <class T>
Gradients<T> differentiate(MPI_Comm comm, const Call<T>& call, const AttentionResult<T>& result,
                           View<const T> grad_out) {
  return with_engines(call, [&]<class Backward>(auto, std::type_identity<Backward>) {
    return run_backward<T, Backward>(comm, call, result, grad_out);
  });
}

}  // namespace

AttentionResult<float> forward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                               const Placements& placement, const Scoring& scoring, const Options& options,
                               View<const float> bias) {
  return attend<float>(comm, {"forward", q, k, v, placement, scoring, options, bias});
}

AttentionResult<double> forward(MPI_Comm comm, View<const double> q, View<const double> k,
                                View<const double> v, const Placements& placement, const Scoring& scoring,
                                const Options& options, View<const double> bias) {
  return attend<double>(comm, {"forward", q, k, v, placement, scoring, options, bias});
}

Gradients<float> backward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                          const AttentionResult<float>& result, View<const float> grad_out,
                          const Placements& placement, const Scoring& scoring, const Options& options,
                          View<const float> bias) {
  return differentiate<float>(comm, {"backward", q, k, v, placement, scoring, options, bias}, result,
                              grad_out);
}

Gradients<double> backward(MPI_Comm comm, View<const double> q, View<const double> k, View<const double> v,
                           const AttentionResult<double>& result, View<const double> grad_out,
                           const Placements& placement, const Scoring& scoring, const Options& options,
                           View<const double> bias) {
  return differentiate<double>(comm, {"backward", q, k, v, placement, scoring, options, bias}, result,
                               grad_out);
}

}  // namespace ring_attention
