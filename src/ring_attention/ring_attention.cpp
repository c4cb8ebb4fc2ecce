#include "ring_attention/ring_attention.hpp"

#include <cmath>
#include <iomanip>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <type_traits>

#include "ring_attention/core/text.hpp"
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

/// Positions and counts below this add up and multiply without overflow.
constexpr Index most_elements = Index{1} << 48U;

bool fits(const Shape& shape) {
  Index left = most_elements;
  for (const Index extent : {shape.batch, shape.heads, shape.dim, std::max<Index>(shape.seq, 1)})
    left /= extent;
  return left > 0;
}

bool within(Index number, Index least, Index most) { return least <= number && number <= most; }

/// The arguments of one call, as this rank gave them.
template <class T>
struct Call {
  const char* name;
  View<const T> q, k, v;
  const Placements& placement;
  const Scoring& scoring;
  const Options& options;
  View<const T> bias;
};

/// What must be the same on all ranks, one line each: equal texts mean equal arguments.
template <class T>
std::string shared_arguments(const Call<T>& call) {
  const Shape &q = call.q.shape(), &k = call.k.shape(), &bias = call.bias.shape();
  const auto& [queries, keys] = call.placement;
  const auto& [scale, mask, slopes, sinks, dropout] = call.scoring;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << call.name << " of " << sizeof(T)
       << "-byte numbers\nbatch " << q.batch << "\nheads " << q.heads << "\nKV heads " << k.heads << "\ndim "
       << q.dim << "\nqueries " << queries.seq() << ' ' << name(queries.kind()) << "\nkeys " << keys.seq()
       << ' ' << name(keys.kind()) << "\nscale " << scale << "\nmask.left " << mask.left << "\nmask.right "
       << mask.right << "\nmask.offset " << mask.offset << "\ntransport "
       << (call.options.transport == TransportKind::overlapped ? "overlapped" : "odd-even") << '\n'
       << "a bias of batch " << bias.batch << ", heads " << bias.heads << ", keys " << bias.dim
       << "\ndropout " << dropout.probability << "\ndropout.seed " << dropout.seed << "\ndropout.step "
       << dropout.step << "\ndropout.layer " << dropout.layer << "\ndropout.first_batch "
       << dropout.first_batch << "\ndropout.first_head " << dropout.first_head << '\n'
       << slopes.size() << " ALiBi slopes\n";
  for (const double slope : slopes) text << "ALiBi slope " << slope << '\n';
  text << sinks.size() << " sinks\n";
  for (const double sink : sinks) text << "a sink " << sink << '\n';
  text << (mask.documents ? "documents\n" : "no documents\n");
  for (Index begin = 0, end = 0; mask.documents && mask.documents->of(begin) >= 0; begin = end) {
    end = mask.documents->end(mask.documents->of(begin));  // empty documents change nothing: `of` skips them
    text << "a document [" << begin << ", " << end << ")\n";
  }
  return text.str() + "no further document\n";
}

/// Throws InputError where an argument of this rank is wrong.
class Check {
 public:
  explicit Check(int rank) : rank_(rank) {}

  void operator()(bool holds, const std::string& message) const {
    if (!holds) throw InputError("rank " + std::to_string(rank_) + ": " + message);
  }
  template <class T>
  void array(const std::string& name, View<const T> array, const Shape& due) const {
    (*this)(array.shape() == due,
            name + " is " + to_string(array.shape()) + " where " + to_string(due) + " is due");
    (*this)(array.data() != nullptr || array.size() == 0, name + " is a null pointer");
  }

 private:
  int rank_;
};

/// Where this rank's arguments first differ from those of rank 0.
void require_same_arguments(int rank, const std::string& mine, const std::string& of_rank_0) {
  std::istringstream here(mine), there(of_rank_0);
  for (std::string line, due; std::getline(here, line) && std::getline(there, due);)
    if (line != due)
      throw InputError("the ranks disagree: rank 0 has " + due + ", rank " + std::to_string(rank) + " has " +
                       line);
}

void check_scoring(const Check& check, const Scoring& scoring, Index heads, double largest) {
  const auto& [scale, mask, slopes, sinks, dropout] = scoring;
  const auto finite = [&](double x) { return std::abs(x) <= largest; };  // false for NaN, too
  check(finite(scale), format("scale is %g: it must be finite", scale));
  check(within(mask.left, 0, Mask::unlimited) && within(mask.right, 0, Mask::unlimited),
        "mask.left and mask.right are numbers of keys: from 0 to Mask::unlimited");
  check(within(mask.offset, -most_elements, most_elements), "mask.offset is beyond 2^48");
  check(slopes.empty() || std::ssize(slopes) == heads,
        std::to_string(slopes.size()) + " ALiBi slopes for " + counted(heads, "head"));
  check(std::ranges::all_of(slopes, finite), "an ALiBi slope is not finite");
  check(sinks.empty() || std::ssize(sinks) == heads,
        counted(std::ssize(sinks), "sink") + " for " + counted(heads, "head"));
  check(std::ranges::all_of(sinks, [&](double x) { return x <= largest; }), "a sink is NaN or +inf");
  check(dropout.valid(),
        format("dropout.probability is %g: it must be from 0 to below 1", dropout.probability));
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

template <class T>
void check_arguments(const Check& check, const Communicator& comm, const Call<T>& call) {
  const Shape &q = call.q.shape(), &k = call.k.shape();
  const auto& [queries, keys] = call.placement;
  check(std::min({q.batch, q.heads, q.dim, k.heads}) > 0 && q.heads % k.heads == 0,
        "q is " + to_string(q) + " and k " + to_string(k) +
            ": batch, heads and dim are at least 1, and the KV heads divide the heads");
  check(queries.ranks() == comm.size() && keys.ranks() == comm.size(),
        "the placement is not for the " + counted(comm.size(), "rank") + " of the communicator");
  check(fits(q.with_seq(queries.seq())) && fits(q.with_seq(keys.seq())), "more than 2^48 elements in all");
  check(std::max(q.dim, keys.max_tokens()) <= std::numeric_limits<int>::max(),
        "dim, and the keys of a rank, are at most 2^31 - 1");
  const Shape due{q.batch, k.heads, keys.tokens(comm.rank()), q.dim};
  check.array("q", call.q, q.with_seq(queries.tokens(comm.rank())));
  check.array("k", call.k, due);
  check.array("v", call.v, due);
  if (const Shape& bias = call.bias.shape(); bias != Shape{})
    check.array("bias", call.bias,
                {bias.batch == 1 ? 1 : q.batch, bias.heads == 1 ? 1 : q.heads, q.seq, keys.seq()});
  check_scoring(check, call.scoring, q.heads, std::numeric_limits<T>::max());
  check_options(check, call.options);
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
    check_arguments(check, comm, call);
    require_same_arguments(comm.rank(), mine, of_rank_0);
    prepare(check);
  });
}

/// Calls run(the type of the transport). A failure can leave messages under way, and MPI cannot take a send back: the
/// parcels, which MPI may still read and fill, then live as long as the process.
template <class Run>
void with_transport(TransportKind kind, std::initializer_list<std::shared_ptr<void>> parcels, Run run) {
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
