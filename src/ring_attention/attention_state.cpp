#include "ring_attention/attention_state.hpp"

#include <algorithm>
#include <array>
#include <utility>

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

}  // namespace

AttentionState::AttentionState(MPI_Comm caller, Options how)
    : comm(duplicate(caller)), options(std::move(how)) {}

template <class T>
bool AttentionState::check_together(const Call<T>& call,
                                    const std::function<void(const Check&)>& check_more) {
  const std::string mine = shared_arguments(call);
  const Check check(comm.rank());
  const auto check_own = [&] {
    check_arguments(check, comm.rank(), comm.size(), call);
    check_options(check, call.options);
  };
  bool right = true;
  try {
    check_own();
    check_more(check);
  } catch (const InputError&) {
    right = false;
  } catch (const std::bad_alloc&) {
    right = false;
  }
  const std::uint64_t digest = std::hash<std::string>()(mine);
  std::array<std::uint64_t, 4> most{right ? 0U : 1U, completed_calls.contains(mine) ? 0U : 1U, digest,
                                    ~digest};
  max_over_ranks(comm, most);
  if (most[0] == 0 && most[2] == ~most[3]) return most[1] != 0;

  // A rank is wrong, or ranks differ: which, and why.
  std::string of_rank_0 = mine;
  broadcast(comm, of_rank_0);
  agree(comm, [&] {
    check_own();
    require_same_arguments(comm.rank(), mine, of_rank_0);
    check_more(check);
  });
  return true;
}

template bool AttentionState::check_together(const Call<float>&, const std::function<void(const Check&)>&);
template bool AttentionState::check_together(const Call<double>&, const std::function<void(const Check&)>&);
template bool AttentionState::check_together(const Call<Bf16>&, const std::function<void(const Check&)>&);
template bool AttentionState::check_together(const Call<Fp16>&, const std::function<void(const Check&)>&);

}  // namespace ring_attention
