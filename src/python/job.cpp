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

Ranks::Ranks(MPI_Comm of) : comm(of) {
  if (comm == MPI_COMM_NULL)
    throw InputError("comm is MPI_COMM_NULL: only the ranks of a communicator make a call with it");
  int between_groups = 0;
  check_mpi(MPI_Comm_test_inter(comm, &between_groups));
  if (between_groups != 0) throw InputError("comm is an intercommunicator: merge its two groups");
  check_mpi(MPI_Comm_rank(comm, &rank));
  check_mpi(MPI_Comm_size(comm, &size));
}

Job::Job() : threads_of_a_rank_(std::max(1, usable_cores() / world_.size)) {
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &freed, &key_, nullptr));
  if (world_.size > 1) watchdog_.emplace(activity_, never, world_.rank, limit);
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

Job::Group& Job::group(const Ranks& ranks) const {
  Group* const known = find(ranks.comm);
  require(known != nullptr, "these ranks have not begun a call");
  return *known;  // NOLINT(clang-analyzer-core.uninitialized.UndefReturn): `require` throws
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

Attention& Job::attention_of(const Ranks& ranks, const Options& options) const {
  Group& of = group(ranks);
  if (!of.attention) of.attention.emplace(of.rendezvous.comm());
  of.attention->options() = options;
  return *of.attention;
}

Observers Job::observers(const Ranks& ranks) {
  Observers all{&observer_};
  Group* const of = find(ranks.comm);
  if (of != nullptr && of->trace) all.push_back(&of->trace->observer);
  return all;
}

void Job::trace(const Ranks& ranks, const std::string& file) {
  drop_trace(ranks);
  Group& of = group(ranks);
  of.trace = std::make_unique<CallTrace>(of.rendezvous.comm(), file);
}

void Job::end_trace(const Ranks& ranks) {
  join(group(ranks).trace.get());
  drop_trace(ranks);
}

void join(CallTrace* trace) {
  if (trace == nullptr) throw AgreedError("trace: a later trace of these ranks has ended in this block");
  trace->trace.join();
}

void Job::drop_trace(const Ranks& ranks) {
  Group& of = group(ranks);
  if (of.attention) of.attention->options().observers = {&observer_};
  of.trace.reset();
}

void Job::wait(const Ranks& ranks) const {
  if (Group* const known = find(ranks.comm); known != nullptr && known->attention) known->attention->wait();
}

std::string Job::begin_together(const Ranks& ranks, const std::string& call, const std::string& problem,
                                const std::string& news, Seconds timeout) {
  if (is_apart_)
    throw Error(
        call +
        ": an earlier call failed on this rank, and the other ranks may still be in it. No further call of "
        "all ranks is possible");
  timeout_ = timeout;
  const InterruptEnds interrupt;
  std::string told;
  run(ranks, [&] {
    Group* const known = find(ranks.comm);
    Group& of = known != nullptr ? *known : make(ranks.comm, call, timeout);
    told = of.rendezvous.begin(call, problem, news, timeout);
  });
  return told;
}

void Job::watch(Phase phase, int peer) {
  activity_.enter(phase, -1, peer);
  watch();
}

void Job::watch() {
  activity_.beat();
  if (watchdog_) watchdog_->expect(timeout_, world_.rank);
}

void Job::unwatch() {
  if (watchdog_) watchdog_->expect(never, world_.rank);
}

InterruptEnds::InterruptEnds() {
  sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_IGN) return;
  struct sigaction end = {};
  end.sa_handler = SIG_DFL;
  sigaction(SIGINT, &end, nullptr);
}

}  // namespace ring_attention::python
