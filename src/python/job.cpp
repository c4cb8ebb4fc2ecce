#include "python/job.hpp"

#include <memory>
#include <utility>

#include "python/mpi_libraries.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/mpi/host.hpp"

namespace ring_attention::python {
namespace {

std::unique_ptr<Job> job;      // NOLINT: MPI is one a process, too
bool finish_ends_mpi = false;  // NOLINT

constexpr auto limit = "RING_ATTENTION_TIMEOUT";
constexpr Seconds never = std::chrono::hours(24 * 365);

/// MPI calls it when MPI_Finalize begins, whoever called that: the communicators of the job are freed first.
int mpi_ends(MPI_Comm, int, void*, void*) {
  job.reset();
  finish_ends_mpi = false;
  return MPI_SUCCESS;
}

}  // namespace

void Job::start(Seconds timeout) {
  load_mpi();
  require_one_mpi_library();
  int initialised = 0, finalised = 0, level = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) throw Error("MPI has ended in this process");
  const Activity activity;
  const Watchdog watchdog(activity, timeout, -1, limit);
  if (initialised == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level));
    finish_ends_mpi = true;
  }
  job = std::make_unique<Job>();
  int key = MPI_KEYVAL_INVALID;  // MPI_Finalize begins with the attributes of MPI_COMM_SELF
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &mpi_ends, &key, nullptr));
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr));
  check_mpi(MPI_Comm_free_keyval(&key));
}

void Job::finish() {
  job.reset();
  if (std::exchange(finish_ends_mpi, false)) MPI_Finalize();
}

Job& Job::started() {
  if (!job) throw Error("MPI has not been started, or it has ended");
  return *job;
}

void Job::abort(int code) {
  if (job) MPI_Abort(MPI_COMM_WORLD, code);
}

bool Job::is_apart() { return job && job->is_apart_; }

Job::Job() {
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  threads_of_a_rank_ = std::max(1, usable_cores() / size_);
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &freed, &key_, nullptr));
  if (size_ > 1) watchdog_.emplace(activity_, never, rank_, limit);
}

void Job::meet(Seconds timeout) {
  if (is_apart_ || find(MPI_COMM_WORLD) != nullptr) return;
  const Activity activity;
  const Watchdog watchdog(activity, timeout, -1, limit);
  threads_of_a_rank_ = std::max(1, usable_cores() / ranks_on_this_host(Communicator(MPI_COMM_WORLD)));
  make(MPI_COMM_WORLD, "start", never);
}

Job::~Job() { MPI_Comm_free_keyval(&key_); }

Job::Group* Job::find(MPI_Comm comm) const {
  void* attribute = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm, key_, static_cast<void*>(&attribute), &found));
  return found != 0 ? static_cast<Group*>(attribute) : nullptr;
}

Job::Group& Job::make(MPI_Comm comm, const std::string& call, Seconds timeout) {
  Group& made = groups_.emplace_back(comm, call, timeout);
  check_mpi(MPI_Comm_set_attr(comm, key_, &made));
  return made;
}

int Job::freed(MPI_Comm, int, void* group, void*) {
  if (job && !job->is_apart_)  // apart: a message may still be under way
    job->groups_.remove_if([&](const Group& one) { return &one == group; });
  return MPI_SUCCESS;
}

Job::Group& Job::open(MPI_Comm comm, const std::string& call, Seconds timeout) {
  timeout_ = timeout;
  if (Group* const known = find(comm)) return *known;
  const InterruptEnds interrupt;
  return make(comm, call, timeout);
}

void Job::watch(Phase phase, int peer) {
  activity_.enter(phase, -1, peer);
  watch();
}

void Job::watch() {
  activity_.beat();
  if (watchdog_) watchdog_->expect(timeout_, rank_);
}

void Job::unwatch() {
  if (watchdog_) watchdog_->expect(never, rank_);
}

InterruptEnds::InterruptEnds() {
  sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_IGN) return;
  struct sigaction end = {};
  end.sa_handler = SIG_DFL;
  sigaction(SIGINT, &end, nullptr);
}

}  // namespace ring_attention::python
