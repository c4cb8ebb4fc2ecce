#include "ring_attention/attention_state.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/context_memory.hpp"

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
  check(std::ranges::count(options.observers, nullptr) == 0, "options.observers has a null pointer");
}

/// Where ranks share heads, messages come before most of the memory is allocated.
/// \throws std::bad_alloc unless this rank can have all of it
template <class T>
void require_memory(const SharedAttention& shared, const Call<T>& call, bool gradients) {
  if (shared.grid.ulysses.size == 1) return;
  constexpr Index bytes = sizeof(T);
  // In the layout that is computed: the arrays of terms, their gradients, and each on its way.
  Index terms = 0;
  each_term(
      [&](Shape term, const auto& array) {
        if (!array) return;
        if (term.heads > 1) term.heads /= shared.grid.ulysses.size;
        terms += (gradients ? 5 : 3) * term.with_seq(shared.tokens.queries.max_tokens()).size() * bytes;
      },
      each_term([](const auto& rows) { return rows.shape(); }, call.term_rows()), call.terms);
  const Index exact = call.options.same_bits > 0 ? exact_bytes(shared, gradients) : 0;
  if (!allocation::available(context_bytes(shared, gradients, {bytes, bytes, bytes}) + exact + terms))
    throw std::bad_alloc();
}

}  // namespace

AttentionState::AttentionState(MPI_Comm caller, Options how)
    : comm(duplicate(caller)), options(std::move(how)) {}

template <class T>
bool AttentionState::agreed(const Call<T>& call, const std::function<void(const Check&)>& check_more) {
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

template <class T>
void AttentionState::agreed(const Call<T>& call) {
  (void)agreed<T>(call,
                  [&](const Check&) { require_memory(shared_by(call), call, call.result.has_value()); });
}

template void AttentionState::agreed(const Call<float>&);
template void AttentionState::agreed(const Call<double>&);
template bool AttentionState::agreed(const Call<float>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<double>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<Bf16>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<Fp16>&, const std::function<void(const Check&)>&);

}  // namespace ring_attention
