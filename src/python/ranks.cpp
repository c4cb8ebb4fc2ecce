#include "python/ranks.hpp"

#include <pybind11/stl.h>

#include <csignal>
#include <memory>

#include "python/mpi_libraries.hpp"
#include "python/scoring.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ring_attention::python {
namespace {

/// The ranks of this job, from start() to finish().
struct Job {
  Communicator world{MPI_COMM_WORLD};  // for the module's own messages
  int threads_of_a_rank = std::max(1, usable_cores() / ranks_on_this_host(world));
};
std::unique_ptr<Job> job;      // NOLINT: MPI is one a process, too
bool finish_ends_mpi = false;  // NOLINT

/// Collective. Another part of the process may have started MPI; then that part ends it.
void start() {
  require_one_mpi_library();
  int initialised = 0, finalised = 0, level = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) throw Error("MPI has ended in this process");
  if (initialised == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level));
    finish_ends_mpi = true;
  }
  job = std::make_unique<Job>();
}

void finish() {
  job.reset();
  if (std::exchange(finish_ends_mpi, false)) MPI_Finalize();
}

const Job& started() {
  if (!job) throw Error("MPI has not been started, or it has ended");
  return *job;
}

/// While it lives, an interrupt (Ctrl-C) ends the process, and so the launcher ends the job: a rank that waits for a message
/// cannot get back to the interpreter.
class InterruptEnds {
 public:
  InterruptEnds() {
    sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction end = {};
    end.sa_handler = SIG_DFL;
    sigaction(SIGINT, &end, nullptr);
  }
  InterruptEnds(const InterruptEnds&) = delete;
  InterruptEnds& operator=(const InterruptEnds&) = delete;
  ~InterruptEnds() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

/// Around what waits for other ranks: without the interpreter's lock, and an interrupt ends the process.
struct Waits {
  py::gil_scoped_release unlocked;
  InterruptEnds interrupt;
};

/// How the ranks divide the work.
struct Division {
  Placements placement;
  Options options;
};

Division make_division(Index queries, Index keys, const std::string& placement, const std::string& parallel,
                       int ulysses, const std::string& transport, int threads) {
  const Job& ranks = started();
  Options options;
  options.partition = partition_named(parallel);
  options.ulysses = ulysses;
  options.threads = threads > 0 ? threads : ranks.threads_of_a_rank;
  options.transport = transport == "overlapped" ? TransportKind::overlapped : TransportKind::odd_even;
  const HybridPlace place = place_in(options.partition, ulysses, ranks.world.rank(), ranks.world.size());
  const PlacementKind kind = placement_kind_named(placement);
  return {{Placement(kind, queries, place.ring.size), Placement(kind, keys, place.ring.size)}, options};
}

Scoring scoring_in(const Division& division, const ScoringWords& words, const Shape& q) {
  return scoring_of(words, q, division.placement.queries.seq(), division.placement.keys.seq());
}

/// (begin, stride, count) of each range of positions that `rank` holds of a sequence.
std::vector<std::tuple<Index, Index, Index>> token_ranges(Index seq, const std::string& placement,
                                                          const std::string& parallel, int ulysses,
                                                          int rank) {
  const HybridPlace place = place_in(partition_named(parallel), ulysses, rank, started().world.size());
  std::vector<std::tuple<Index, Index, Index>> ranges;
  for (const TokenRange& range : place.slice({placement_kind_named(placement), seq, place.ring.size}))
    ranges.emplace_back(range.begin, range.stride, range.count);
  return ranges;
}

/// The beginning of every collective call: all ranks have to make the same, and none may have a problem.
/// \throws AgreedError
void begin_together(const std::string& call, const std::string& problem) {
  const Communicator& world = started().world;
  const Waits waits;
  agree(world, [&] {
    if (!problem.empty()) throw InputError("rank " + std::to_string(world.rank()) + ": " + problem);
  });
  require_same(world, "the call", call);
}

/// May query i see key j? [1, 1, queries, keys]; None when each sees all.
template <class T>
py::object visible_pairs(const AttentionTask<T>& task) {
  const std::vector<Index> queries = positions(task.queries), keys = positions(task.keys);
  Tensor<bool> visible({1, 1, std::ssize(queries), std::ssize(keys)});
  bool all = true;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const Interval seen = task.scoring.mask.visible(queries[i]);
    const std::span<bool> row = visible.view().row(0, 0, static_cast<Index>(i));
    for (std::size_t j = 0; j < keys.size(); ++j) {
      row[j] = seen.begin <= keys[j] && keys[j] < seen.end;
      all = all && row[j];
    }
  }
  if (all) return py::none();
  return py::cast(Array(std::move(visible)));
}

template <class T>
Array copied(const View<const T>& array) {
  return Array(converted<T>(array));
}

/// A kernel in Python: kernel(q, k, v, mask, scale) -> (out, lse). It gets copies, which it may keep.
template <class T>
AttentionFunction<T> function_of(const py::function& kernel) {
  return [&kernel](const AttentionTask<T>& task) {
    const py::gil_scoped_acquire locked;
    const py::tuple result =
        kernel(copied(task.q), copied(task.k), copied(task.v), visible_pairs(task), task.scoring.scale);
    const Input<T> out("out", result[0]), lse("lse", result[1]);
    return AttentionResult<T>{converted<T>(out.view()), converted<T>(lse.view())};
  };
}

template <class T>
py::tuple ring_forward(const py::buffer& q_array, const py::buffer& k_array, const py::buffer& v_array,
                       const Division& division, const ScoringWords& words,
                       const std::optional<py::buffer>& bias_array,
                       const std::optional<py::function>& kernel) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array);
  const OptionalInput<T> bias("bias", bias_array);
  (void)started();
  AttentionResult<T> result;
  {
    const Waits waits;
    const auto& [placement, options] = division;
    const Scoring scoring = scoring_in(division, words, q.view().shape());
    result = kernel ? forward(MPI_COMM_WORLD, function_of<T>(*kernel), q.view(), k.view(), v.view(),
                              placement, scoring, options)
                    : forward(MPI_COMM_WORLD, q.view(), k.view(), v.view(), placement, scoring, options,
                              bias.view());
  }
  return py::make_tuple(Array(std::move(result.out)), Array(std::move(result.lse)));
}

template <class T>
py::tuple ring_backward(const py::buffer& grad_out_array, const py::buffer& q_array,
                        const py::buffer& k_array, const py::buffer& v_array, const py::buffer& out_array,
                        const py::buffer& lse_array, const Division& division, const ScoringWords& words,
                        const std::optional<py::buffer>& bias_array) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array), grad_out("grad_out", grad_out_array),
      out("out", out_array), lse("lse", lse_array);
  const OptionalInput<T> bias("bias", bias_array);
  (void)started();
  Gradients<T> gradients;
  {
    const Waits waits;
    const AttentionResult<T> result{converted<T>(out.view()), converted<T>(lse.view())};
    gradients =
        backward(MPI_COMM_WORLD, q.view(), k.view(), v.view(), result, grad_out.view(), division.placement,
                 scoring_in(division, words, q.view().shape()), division.options, bias.view());
  }
  return python_gradients(std::move(gradients));
}

constexpr int tag = 0;  // of the arrays that scatter and gather send

void send(const py::buffer& array, int to) {
  const py::buffer_info info = array.request();
  const Communicator& world = started().world;
  const Waits waits;
  check_mpi(MPI_Send_c(info.ptr, info.size * info.itemsize, MPI_BYTE, to, tag, world.handle()));
}

void receive(const py::buffer& array, int from) {
  const py::buffer_info info = array.request(true);
  const Communicator& world = started().world;
  const Waits waits;
  check_mpi(MPI_Recv_c(info.ptr, info.size * info.itemsize, MPI_BYTE, from, tag, world.handle(),
                       MPI_STATUS_IGNORE));
}

std::string broadcast_text(std::string text) {
  const Communicator& world = started().world;
  const Waits waits;
  broadcast(world, text);
  return text;
}

}  // namespace

void bind_ranks(py::module_& module) {
  py::class_<Division>(module, "Division").def(py::init(&make_division));
  module.def("start", &start, py::call_guard<py::gil_scoped_release>());
  module.def("finish", &finish, py::call_guard<py::gil_scoped_release>());
  module.def("abort", [](int code) { MPI_Abort(MPI_COMM_WORLD, code); });
  module.def("rank", [] { return started().world.rank(); });
  module.def("size", [] { return started().world.size(); });
  module.def("token_ranges", &token_ranges);
  module.def("begin_together", &begin_together);
  module.def("ring_forward",
             [](const py::buffer& q, const py::buffer& k, const py::buffer& v, const Division& division,
                const ScoringWords& words, const std::optional<py::buffer>& bias,
                const std::optional<py::function>& kernel) {
               return (is_double(q) ? ring_forward<double> : ring_forward<float>)(q, k, v, division, words,
                                                                                  bias, kernel);
             });
  module.def("ring_backward", [](const py::buffer& grad_out, const py::buffer& q, const py::buffer& k,
                                 const py::buffer& v, const py::buffer& out, const py::buffer& lse,
                                 const Division& division, const ScoringWords& words,
                                 const std::optional<py::buffer>& bias) {
    return (is_double(q) ? ring_backward<double> : ring_backward<float>)(grad_out, q, k, v, out, lse,
                                                                         division, words, bias);
  });
  module.def("send", &send);
  module.def("receive", &receive);
  module.def("broadcast", &broadcast_text);
}

}  // namespace ring_attention::python
