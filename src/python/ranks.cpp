#include "python/ranks.hpp"

#include <pybind11/stl.h>

#include <algorithm>

#include "python/job.hpp"
#include "python/mpi_libraries.hpp"
#include "python/placement.hpp"
#include "python/scoring.hpp"
#include "ring_attention/parallel/function_device.hpp"
#include "ring_attention/partitions.hpp"

namespace ring_attention::python {
namespace {

/// \param transport  of arrays of a GPU: "nccl", "staged"
/// \param timeout    of a GPU's messages
Division make_division(const std::shared_ptr<Ranks>& ranks, Index queries, Index keys,
                       const PlacementArgument& placement, const std::string& parallel, int ulysses,
                       const std::string& transport, int threads, double timeout,
                       const ScoringArguments& arguments, bool sum_numbers) {
  const ring_attention::Division how = division_named(parallel, ulysses);
  const int places = how.grid(ranks->rank(), ranks->size()).ring.size;
  const Index tile = arguments.same_bits, offset = arguments.q_offset.value_or(keys - queries);
  return {ranks,
          {placement_of(placement, queries, places, tile, arguments.documents, offset),
           placement_of(placement, keys, places, tile, arguments.documents, 0)},
          how,
          transport,
          threads,
          Seconds(timeout),
          tile,
          sum_numbers,
          ranks->observers()};
}

/// (begin, stride, count) of each range of positions that `rank` of some ranks holds of a sequence.
std::vector<std::tuple<Index, Index, Index>> token_ranges(
    const Ranks& ranks, Index seq, const PlacementArgument& placement, const std::string& parallel,
    int ulysses, int rank, Index tile, const std::optional<std::vector<Index>>& documents, Index offset) {
  const RankGrid grid = division_named(parallel, ulysses).grid(rank, ranks.size());
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
class MpiRanks : public Ranks {
 public:
  /// \param of  stays the caller's \throws InputError unless it is an intracommunicator
  explicit MpiRanks(MPI_Comm of) : comm_(of) {
    if (comm_ == MPI_COMM_NULL)
      throw InputError("comm is MPI_COMM_NULL: only the ranks of a communicator make a call with it");
    int between_groups = 0;
    check_mpi(MPI_Comm_test_inter(comm_, &between_groups));
    if (between_groups != 0) throw InputError("comm is an intercommunicator: merge its two groups");
    check_mpi(MPI_Comm_rank(comm_, &rank_));
    check_mpi(MPI_Comm_size(comm_, &size_));
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int threads() const override { return Job::started().threads_of_a_rank(); }
  void run(const std::function<void()>& run, Phase phase) override { wait_for(-1, phase, run); }
  void run_user_code(const std::function<void()>& run) override {
    const UserCode user_code;
    run();
  }

  [[nodiscard]] bool are_all() const { return comm_ == MPI_COMM_WORLD; }
  /// A call that fails on one rank alone leaves the others inside it.
  void set_apart() const {
    if (size_ > 1) Job::started().set_apart();
  }

  // The texts by which a call begins (_meeting.py).
  void open(const std::string& call, double timeout) {
    letters_ = &Job::started().open(comm_, call, Seconds(timeout)).letters;
  }
  void send_text(int to, std::string text) { letters_->send(to, std::move(text)); }
  [[nodiscard]] std::optional<std::string> receive_text(int from, double seconds) {
    const InterruptEnds interrupt;
    return letters_->receive(from, Seconds(seconds));
  }
  void withdraw() { letters_->withdraw(); }
  [[nodiscard]] bool is_withdrawn() const { return letters_->is_withdrawn(); }

  // The arrays that scatter and gather send.
  void send(const py::buffer& array, int to) {
    const py::buffer_info info = array.request();
    wait_for(to, Phase::exchange, [&] {
      check_mpi(MPI_Send_c(info.ptr, info.size * info.itemsize, MPI_BYTE, to, tag, own_comm()));
    });
  }
  void receive(const py::buffer& array, int from) {
    const py::buffer_info info = array.request(true);
    wait_for(from, Phase::exchange, [&] {
      check_mpi(MPI_Recv_c(info.ptr, info.size * info.itemsize, MPI_BYTE, from, tag, own_comm(),
                           MPI_STATUS_IGNORE));
    });
  }

 private:
  static constexpr int tag = 0;

  /// Runs the rest of a call, in which this rank waits for others: without the interpreter's lock.
  void wait_for(int peer, Phase phase, const std::function<void()>& run) const {
    const py::gil_scoped_release unlocked;
    const Wait wait(Job::started(), phase, peer);
    try {
      run();
    } catch (const AgreedError&) {
      throw;
    } catch (...) {
      set_apart();
      throw;
    }
  }
  /// A duplicate of the communicator of ranks that have begun a call.
  [[nodiscard]] MPI_Comm own_comm() const {
    const Job::Group* const known = Job::started().find(comm_);
    require(known != nullptr, "these ranks have not begun a call");
    return known->letters.comm();
  }
  [[nodiscard]] Kept* kept() override {
    Job::Group* const known = Job::started().find(comm_);
    return known != nullptr ? &known->kept : nullptr;
  }
  [[nodiscard]] Observers watchdog() override { return {&Job::started().observer()}; }
  [[nodiscard]] std::shared_ptr<AttentionRanks> make_attention_ranks() override { return mpi(own_comm()); }
  [[nodiscard]] std::unique_ptr<CallTrace> make_trace(const std::string& file) override {
    return std::make_unique<CallTrace>(own_comm(), file);
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  Letters* letters_ = nullptr;  // of the call that begins
};

/// A kernel in Python: kernel(q, k, v, mask, scale) -> (out, lse). It gets copies, which it may keep.
template <class T>
AttentionFunction<T> function_of(const py::function& kernel, Ranks& ranks) {
  return [&](const AttentionTask<T>& task) {
    const py::gil_scoped_acquire locked;
    py::tuple result;
    ranks.run_user_code([&] {
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
  division.ranks->run([&] {
    const Scoring scoring = division.scoring(arguments, q.view().shape());
    std::optional<Processor> mine;
    if (kernel) mine = ring_attention::kernel<T>(function_of<T>(*kernel, *division.ranks));
    result = forward(division.attention(mine), q.view(), k.view(), v.view(), division.placement, scoring,
                     bias.view());
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
  division.ranks->run([&] {
    gradients = backward(division.attention(), q.view(), k.view(), v.view(),
                         ResultViews<const T>(out.view(), lse.view()), grad_out.view(), division.placement,
                         division.scoring(arguments, q.view().shape()), bias.view(), grad_lse.view());
  });
  return python_gradients(std::move(gradients));
}

/// \param address  of the handle of a communicator, as mpi4py gives it; none: the world
std::shared_ptr<MpiRanks> make_ranks(std::optional<std::uintptr_t> address) {
  static_cast<void>(Job::started());
  if (!address) return std::make_shared<MpiRanks>(MPI_COMM_WORLD);
  static const bool of_one_library = (require_one_mpi_library(), true);
  static_cast<void>(of_one_library);
  return std::make_shared<MpiRanks>(*reinterpret_cast<const MPI_Comm*>(*address));
}

}  // namespace

Scoring Division::scoring(const ScoringArguments& arguments, const Shape& q) const {
  return scoring_of(arguments, q, placement.queries.seq(), placement.keys.seq());
}

void bind_ranks(py::module_& module) {
  using unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Ranks, std::shared_ptr<Ranks>>(module, "Ranks")
      .def_property_readonly("rank", &Ranks::rank)
      .def_property_readonly("size", &Ranks::size)
      .def("token_ranges", &token_ranges)
      .def("wait", &Ranks::wait)
      .def("trace", &Ranks::trace)
      .def("end_trace", &Ranks::end_trace)
      .def("drop_trace", &Ranks::drop_trace);
  bind_placement(module);
  py::class_<MpiRanks, Ranks, std::shared_ptr<MpiRanks>>(module, "MpiRanks")
      .def(py::init(&make_ranks))
      .def_property_readonly("are_all", &MpiRanks::are_all)
      .def_property_readonly("is_apart", [](const MpiRanks&) { return Job::is_apart(); })
      .def("set_apart", &MpiRanks::set_apart)
      .def("open", &MpiRanks::open, unlocked())
      .def("send_text", &MpiRanks::send_text)
      .def("receive_text", &MpiRanks::receive_text, unlocked())
      .def("withdraw", &MpiRanks::withdraw)
      .def("is_withdrawn", &MpiRanks::is_withdrawn)
      .def("send", &MpiRanks::send)
      .def("receive", &MpiRanks::receive);
  py::class_<PeerRanks, Ranks, std::shared_ptr<PeerRanks>>(module, "PeerRanks")
      .def(py::init<const py::object&>())
      .def("share_cores", &PeerRanks::share_cores)
      .def_readonly("is_apart", &PeerRanks::is_apart)
      .def("set_apart", [](PeerRanks& self) { self.is_apart = true; });
  py::class_<Division>(module, "Division").def(py::init(&make_division));
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
