#include "ring_attention/app/run_command.hpp"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "ring_attention/app/progress_line.hpp"
#include "ring_attention/app/run_check.hpp"
#include "ring_attention/app/run_report.hpp"
#include "ring_attention/app/run_results.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/odd_even_ring.hpp"

namespace ring_attention {
namespace {

/// Seconds of the slowest rank since it was made or last read.
class Stopwatch {
 public:
  explicit Stopwatch(const Communicator& comm) : comm_(comm) {}
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return max_over_ranks(comm_, std::chrono::duration<double>(now - std::exchange(last_, now)).count());
  }

 private:
  const Communicator& comm_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Index process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
}

/// One `ring-attention run` in arithmetic T: read, attend, check, write. Every function is collective.
template <class T>
class Job {
 public:
  Job(const Communicator& comm, const RunOptions& options, RunInput& input, Activity& activity)
      : comm_(comm),
        options_(options),
        input_(input),
        activity_(activity),
        queries_(Layout::contiguous, input.q().seq, comm.size()),
        keys_(Layout::contiguous, input.kv().seq, comm.size()),
        runs_(queries_.runs(comm.rank())) {
    report_.q = input.q();
    report_.kv = input.kv();
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input.scoring().scale;
    report_.q_offset = input.scoring().mask.offset;
    mine_.tokens = count(runs_);
  }

  int operator()() {
    std::optional<RunResults> results;
    if (!options_.out.empty()) results.emplace(comm_, options_.out, input_, dtype_of<T>());
    allocation::reset_peak();
    const Attended<T> got = attend(read());
    if (options_.check) check(got);
    gather();
    if (results && report_.ok()) write(*results, got);
    print(results.has_value());
    return report_.ok() ? 0 : 1;
  }

 private:
  KvParcel<T> read() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    q_ = input_.template queries<T>(queries_, comm_.rank());
    KvParcel<T> kv = input_.template parcel<T>(keys_, comm_.rank());
    report_.read_seconds = watch.lap();
    report_.warnings = input_.template non_finite<T>(comm_, queries_, keys_, q_, kv);
    if (comm_.rank() == 0)
      for (const std::string& line : report_.warnings) std::fprintf(stderr, "warning: %s\n", line.c_str());
    if (options_.check && !report_.warnings.empty())
      throw AgreedError("--check needs finite arrays: " + report_.warnings.front());
    return kv;
  }

  Attended<T> attend(KvParcel<T> kv) {
    OddEvenRing link(comm_);
    BlockwiseEngine<T> engine(input_.scoring(), options_.block);
    barrier(comm_);
    Stopwatch watch(comm_);
    engine.begin(q_, runs_);
    ring_forward(engine, link, kv, activity_);
    Attended<T> got = engine.finish();
    report_.ring_seconds = watch.lap();
    report_.transport = "odd-even";
    mine_.messages_sent = link.statistics().messages_sent;
    mine_.bytes_sent = link.statistics().bytes_sent;
    mine_.exposed_seconds = link.statistics().exposed_seconds;
    mine_.tensor_bytes = allocation::peak();
    return got;
  }

  void check(const Attended<T>& got) {
    activity_.enter(Phase::check);
    Stopwatch watch(comm_);
    const RowCheck rows = check_rows(input_, runs_, q_, got, activity_);
    report_.check_seconds = watch.lap();
    mine_.rows_checked = rows.rows;
    mine_.ok = rows.out.ok && rows.lse.ok;
    mine_.out = {rows.out.max_error, rows.out.mean_error, rows.out.relative_error};
    mine_.lse = {rows.lse.max_error, rows.lse.mean_error, rows.lse.relative_error};
  }

  void gather() {
    mine_.process_bytes = process_peak_bytes();
    report_.ranks = ring_attention::gather(comm_, mine_);
  }

  void write(RunResults& results, const Attended<T>& got) {
    activity_.enter(Phase::write);
    Stopwatch watch(comm_);
    results.write(got, runs_);
    report_.write_seconds = watch.lap();
    results.commit(to_json(report_, options_));
  }

  void print(bool wants_files) const {
    if (comm_.rank() != 0) return;
    std::fputs((options_.json ? to_json(report_, options_) : to_text(report_, options_)).c_str(), stdout);
    if (!report_.ok())
      std::fprintf(stderr, "error: the check failed%s\n", wants_files ? "; nothing was written" : "");
    else if (wants_files && !options_.json)
      std::printf("\nWrote out.npy, lse.npy and report.json to %s\n", options_.out.c_str());
  }

  const Communicator& comm_;
  const RunOptions& options_;
  RunInput& input_;
  Activity& activity_;
  Placement queries_, keys_;
  Runs runs_;    // this rank's queries stand here
  Tensor<T> q_;  // and these they are
  RunReport report_;
  RankReport mine_;
};

}  // namespace

int run_command(const Communicator& comm, const RunOptions& options) {
  agree(comm, [&] { validate(options); });
  require_world_size(comm, options.ranks);
  Activity activity;
  const Watchdog watchdog(activity, std::chrono::duration<double>(options.timeout), comm.rank());
  const ProgressLine progress(activity, comm.size(), comm.rank() == 0 ? options.progress : "never");
  RunInput input(comm, options);
  return input.is_double() ? Job<double>(comm, options, input, activity)()
                           : Job<float>(comm, options, input, activity)();
}

}  // namespace ring_attention
