#include "python/job.hpp"

#include <memory>
#include <utility>

#include "python/mpi_libraries.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention::python {
namespace {

std::unique_ptr<Job> job;      // NOLINT: MPI is one a process, too
bool finish_ends_mpi = false;  // NOLINT

constexpr auto limit = "RING_ATTENTION_TIMEOUT";
constexpr Seconds never = std::chrono::hours(24 * 365);

}  // namespace

void Job::start(Seconds timeout) {
  require_one_mpi_library();
  int initialised = 0, finalised = 0, level = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) throw Error("MPI has ended in this process");
  const Activity activity;
  const Watchdog watchdog(activity, timeout, -1, limit);
  if (initialised == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level));
    finish_ends_mpi = true;
  }
  job = std::make_unique<Job>();
}

void Job::finish() {
  job.reset();
  if (std::exchange(finish_ends_mpi, false)) MPI_Finalize();
}

Job& Job::started() {
  if (!job) throw Error("MPI has not been started, or it has ended");
  return *job;
}

Job::Job() : threads_of_a_rank_(std::max(1, usable_cores() / ranks_on_this_host(world_))) {
  if (world_.size() > 1) watchdog_.emplace(activity_, never, world_.rank(), limit);
}

void Job::begin_together(const std::string& call, const std::string& problem, Seconds timeout) {
  if (is_apart())
    throw Error(
        call +
        ": an earlier call failed on this rank, and the other ranks may still be in it. No further call of "
        "all ranks is possible");
  timeout_ = timeout;
  const InterruptEnds interrupt;
  run([&] { rendezvous_.begin(call, problem, timeout); });
}

void Job::watch(Phase phase, int peer) {
  activity_.enter(phase, -1, peer);
  if (watchdog_) watchdog_->expect(timeout_, world_.rank());
}

void Job::unwatch() {
  if (watchdog_) watchdog_->expect(never, world_.rank());
}

InterruptEnds::InterruptEnds() {
  sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_IGN) return;
  struct sigaction end = {};
  end.sa_handler = SIG_DFL;
  sigaction(SIGINT, &end, nullptr);
}

}  // namespace ring_attention::python
