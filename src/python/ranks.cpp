#include "python/ranks.hpp"

#include <pybind11/stl.h>

#include <algorithm>

#include "python/job.hpp"
#include "python/mpi_libraries.hpp"
#include "python/placement.hpp"
#include "python/scoring.hpp"

namespace ring_attention::python {
namespace {

/// \param transport  of arrays of a GPU: "nccl", "staged"
/// \param timeout    of a GPU's messages
Division make_division(const std::shared_ptr<Caller>& caller, Index queries, Index keys,
                       const PlacementArgument& placement, const std::string& parallel, int ulysses,
                       const std::string& transport, int threads, double timeout,
                       const ScoringArguments& arguments, bool sum_numbers) {
  Options options;
  options.sum_numbers = sum_numbers;
  options.partition = partition_named(parallel);
  options.ulysses = ulysses;
  options.threads = threads;
  if (transport == "nccl") options.gpu.transport = GpuOptions::Transport::nccl;
  if (transport == "staged") options.gpu.transport = GpuOptions::Transport::staged;
  options.gpu.timeout = Seconds(timeout);
  options.same_bits = arguments.same_bits;
  options.observers = caller->observers();
  const RankGrid grid = rank_grid(options.partition, ulysses, caller->rank(), caller->size());
  const Index offset = arguments.q_offset.value_or(keys - queries);
  return {caller,
          {placement_of(placement, queries, grid.ring.size, arguments.same_bits, arguments.documents, offset),
           placement_of(placement, keys, grid.ring.size, arguments.same_bits, arguments.documents, 0)},
          options};
}

/// (begin, stride, count) of each range of positions that `rank` of some ranks holds of a sequence.
std::vector<std::tuple<Index, Index, Index>> token_ranges(
    const Caller& ranks, Index seq, const PlacementArgument& placement, const std::string& parallel,
    int ulysses, int rank, Index tile, const std::optional<std::vector<Index>>& documents, Index offset) {
  const RankGrid grid = rank_grid(partition_named(parallel), ulysses, rank, ranks.size());
  std::vector<std::tuple<Index, Index, Index>> ranges;
  for (const TokenRange& range :
       grid.slice(placement_of(placement, seq, grid.ring.size, tile, documents, offset)))
    ranges.emplace_back(range.begin, range.stride, range.count);
  return ranges;
}

/// May query i see key j? [1, 1, queries, keys]; None when each sees all.
template <class T>
py::object visible_pairs(const AttentionTask<T>& task) {
  const std::vector<Index> queries = positions(task.queries), keys = positions(task.keys);
  Tensor<bool> visible({1, 1, std::ssize(queries), std::ssize(keys)});
  bool all = true;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::span<bool> row = visible.view().row(0, 0, static_cast<Index>(i));
    std::ranges::fill(row, false);
    for (int part = 0; part < task.scoring.mask.parts(); ++part) {
      const Interval seen = task.scoring.mask.visible(queries[i], part);
      for (std::size_t j = 0; j < keys.size(); ++j) row[j] |= seen.begin <= keys[j] && keys[j] < seen.end;
    }
    all = all && std::ranges::find(row, false) == row.end();
  }
  if (all) return py::none();
  return py::cast(Array(std::move(visible)));
}

template <class T>
Array copied(const View<const T>& array) {
  return Array(converted<T>(array));
}

/// While it lives, this rank does not wait, and may need long between two signs of life.
struct UserCode {
  UserCode() { Job::started().unwatch(); }
  UserCode(const UserCode&) = delete;
  UserCode& operator=(const UserCode&) = delete;
  ~UserCode() { Job::started().watch(); }
};

/// The ranks of a communicator of MPI.
class MpiCaller : public Caller {
 public:
  explicit MpiCaller(Ranks ranks) : ranks_(ranks) {}

  [[nodiscard]] int rank() const override { return ranks_.rank; }
  [[nodiscard]] int size() const override { return ranks_.size; }
  [[nodiscard]] int threads() const override { return Job::started().threads_of_a_rank(); }
  [[nodiscard]] Observers observers() const override { return Job::started().observers(ranks_); }
  [[nodiscard]] Attention& attention(const Options& options) override {
    return Job::started().attention_of(ranks_, options);
  }
  void run(const std::function<void()>& run) override {
    run_unlocked(ranks_, Phase::compute, -1, [&](MPI_Comm) { run(); });
  }
  void run_user_code(const std::function<void()>& run) override {
    const UserCode user_code;
    run();
  }
  void trace(const std::string& file) override {
    run_unlocked(ranks_, Phase::write, -1, [&](MPI_Comm) { Job::started().trace(ranks_, file); });
  }
  void end_trace() override {
    run_unlocked(ranks_, Phase::write, -1, [&](MPI_Comm) { Job::started().end_trace(ranks_); });
  }
  void drop_trace() override { Job::started().drop_trace(ranks_); }
  [[nodiscard]] const Ranks& ranks() const { return ranks_; }

 private:
  Ranks ranks_;
};

/// A kernel in Python: kernel(q, k, v, mask, scale) -> (out, lse). It gets copies, which it may keep.
template <class T>
AttentionFunction<T> function_of(const py::function& kernel, Caller& caller) {
  return [&](const AttentionTask<T>& task) {
    const py::gil_scoped_acquire locked;
    py::tuple result;
    caller.run_user_code([&] {
      result =
          kernel(copied(task.q), copied(task.k), copied(task.v), visible_pairs(task), task.scoring.scale);
    });
    const Input<T> out("out", result[0]), lse("lse", result[1]);
    return AttentionResult<T>{converted<T>(out.view()), converted<T>(lse.view())};
  };
}

template <class T>
py::tuple ring_forward(const py::buffer& q_array, const py::buffer& k_array, const py::buffer& v_array,
                       const Division& division, const ScoringArguments& arguments,
                       const std::optional<py::buffer>& bias_array,
                       const std::optional<py::function>& kernel) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array);
  const OptionalInput<T> bias("bias", bias_array);
  AttentionResult<T> result;
  division.caller->run([&] {
    const Scoring scoring = division.scoring(arguments, q.view().shape());
    const AttentionArrays<T> arrays{q.view(), k.view(), v.view(), bias.view()};
    Attention& attention = division.attention();
    result = kernel ? attention.forward<T>(function_of<T>(*kernel, *division.caller), arrays,
                                           division.placement, scoring)
                    : attention.forward<T>(arrays, division.placement, scoring);
  });
  return py::make_tuple(Array(std::move(result.out)), Array(std::move(result.lse)));
}

template <class T>
py::tuple ring_backward(const py::buffer& grad_out_array, const py::buffer& q_array,
                        const py::buffer& k_array, const py::buffer& v_array, const py::buffer& out_array,
                        const py::buffer& lse_array, const Division& division,
                        const ScoringArguments& arguments, const std::optional<py::buffer>& bias_array,
                        const std::optional<py::buffer>& grad_lse_array) {
  const Input<T> q("q", q_array), k("k", k_array), v("v", v_array), grad_out("grad_out", grad_out_array),
      out("out", out_array), lse("lse", lse_array);
  const OptionalInput<T> bias("bias", bias_array), grad_lse("grad_lse", grad_lse_array);
  Gradients<T> gradients;
  division.caller->run([&] {
    gradients = division.attention().backward<T>(
        {q.view(), k.view(), v.view(), bias.view()}, {out.view(), lse.view()}, grad_out.view(),
        division.placement, division.scoring(arguments, q.view().shape()), grad_lse.view());
  });
  return python_gradients(std::move(gradients));
}

constexpr int tag = 0;  // of the arrays that scatter and gather send

void send(const Ranks& ranks, const py::buffer& array, int to) {
  const py::buffer_info info = array.request();
  run_unlocked(ranks, Phase::exchange, to, [&](MPI_Comm comm) {
    check_mpi(MPI_Send_c(info.ptr, info.size * info.itemsize, MPI_BYTE, to, tag, comm));
  });
}

void receive(const Ranks& ranks, const py::buffer& array, int from) {
  const py::buffer_info info = array.request(true);
  run_unlocked(ranks, Phase::exchange, from, [&](MPI_Comm comm) {
    check_mpi(MPI_Recv_c(info.ptr, info.size * info.itemsize, MPI_BYTE, from, tag, comm, MPI_STATUS_IGNORE));
  });
}

void wait(const Ranks& ranks) {
  Job& job = Job::started();
  const py::gil_scoped_release unlocked;
  const Wait waits(job, Phase::compute);
  job.run(ranks, [&] { job.wait(ranks); });
}

/// \param address  of the handle of a communicator, as mpi4py gives it; none: the world
Ranks make_ranks(std::optional<std::uintptr_t> address) {
  static_cast<void>(Job::started());
  if (!address) return Ranks(MPI_COMM_WORLD);
  static const bool of_one_library = (require_one_mpi_library(), true);
  static_cast<void>(of_one_library);
  return Ranks(*reinterpret_cast<const MPI_Comm*>(*address));
}

/// A function of Ranks as a method of MpiCaller.
template <class Result, class... Arguments>
auto of_ranks(Result (*function)(const Ranks&, Arguments...)) {
  return [function](const MpiCaller& self, Arguments... arguments) {
    return function(self.ranks(), arguments...);
  };
}

void bind_calls_of(py::class_<MpiCaller, Caller, std::shared_ptr<MpiCaller>> ranks) {
  ranks.def(py::init([](std::optional<std::uintptr_t> address) {
    return std::make_shared<MpiCaller>(make_ranks(address));
  }));
  ranks.def_property_readonly("are_all",
                              [](const MpiCaller& self) { return self.ranks().comm == MPI_COMM_WORLD; });
  ranks.def(
      "begin",
      [](const MpiCaller& self, const std::string& call, const std::string& problem, const std::string& news,
         double timeout) {
        return Job::started().begin_together(self.ranks(), call, problem, news, Seconds(timeout));
      },
      py::call_guard<py::gil_scoped_release>());
  ranks.def("send", of_ranks(&send));
  ranks.def("receive", of_ranks(&receive));
  ranks.def("wait", of_ranks(&wait));
}

}  // namespace

Scoring Division::scoring(const ScoringArguments& arguments, const Shape& q) const {
  return scoring_of(arguments, q, placement.queries.seq(), placement.keys.seq());
}

void run_unlocked(const Ranks& ranks, Phase phase, int peer, const std::function<void(MPI_Comm)>& run) {
  Job& job = Job::started();
  const py::gil_scoped_release unlocked;
  const Wait wait(job, phase, peer);
  job.run(ranks, [&] { run(job.comm_of(ranks)); });
}

void bind_ranks(py::module_& module) {
  py::class_<Caller, std::shared_ptr<Caller>>(module, "Caller")
      .def_property_readonly("rank", &Caller::rank)
      .def_property_readonly("size", &Caller::size)
      .def("token_ranges", &token_ranges)
      .def("trace", &Caller::trace)
      .def("end_trace", &Caller::end_trace)
      .def("drop_trace", &Caller::drop_trace);
  bind_placement(module);
  bind_calls_of(py::class_<MpiCaller, Caller, std::shared_ptr<MpiCaller>>(module, "Ranks"));
  py::class_<GroupCaller, Caller, std::shared_ptr<GroupCaller>>(module, "Group")
      .def(py::init<const py::object&>())
      .def("share_cores", &GroupCaller::share_cores)
      .def("wait", &GroupCaller::wait)
      .def_readwrite("is_apart", &GroupCaller::is_apart);
  py::class_<Division>(module, "Division").def(py::init(&make_division));
  using unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("start", [](double timeout) { Job::start(Seconds(timeout)); }, unlocked());
  module.def("meet", [](double timeout) { Job::started().meet(Seconds(timeout)); }, unlocked());
  module.def("finish", &Job::finish, unlocked());
  module.def("abort", &Job::abort);
  module.def("is_apart", &Job::is_apart);
  module.attr("handle_bytes") = sizeof(MPI_Comm);
  module.def("ring_forward",
             [](const py::buffer& q, const py::buffer& k, const py::buffer& v, const Division& division,
                const ScoringArguments& arguments, const std::optional<py::buffer>& bias,
                const std::optional<py::function>& kernel) {
               return (is_double(q) ? ring_forward<double> : ring_forward<float>)(q, k, v, division,
                                                                                  arguments, bias, kernel);
             });
  module.def("ring_backward", [](const py::buffer& grad_out, const py::buffer& q, const py::buffer& k,
                                 const py::buffer& v, const py::buffer& out, const py::buffer& lse,
                                 const Division& division, const ScoringArguments& arguments,
                                 const std::optional<py::buffer>& bias,
                                 const std::optional<py::buffer>& grad_lse) {
    return (is_double(q) ? ring_backward<double> : ring_backward<float>)(grad_out, q, k, v, out, lse,
                                                                         division, arguments, bias, grad_lse);
  });
}

}  // namespace ring_attention::python
