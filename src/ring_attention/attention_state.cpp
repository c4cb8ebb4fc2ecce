#include "ring_attention/attention_state.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {
namespace {

void check_options(const Check& check, const Options& options, bool over_mpi) {
  int level = MPI_THREAD_MULTIPLE;
  if (over_mpi) check_mpi(MPI_Query_thread(&level));
  check(options.threads >= 1, "options.threads is at least 1");
  check(options.threads == 1 || level >= MPI_THREAD_FUNNELED,
        "options.threads above 1 needs MPI_THREAD_FUNNELED: start MPI with MPI_Init_thread");
  check(std::ranges::count(available_isas(), options.isa) > 0,
        "options.isa is not available on this machine");
  check(std::ranges::count(options.observers, nullptr) == 0, "options.observers has a null pointer");
}

}  // namespace

AttentionState::AttentionState(std::unique_ptr<AttentionRanks> who, Options how)
    : ranks(std::move(who)), options(std::move(how)) {}

template <class T>
bool AttentionState::agreed(const Call<T>& call, const std::function<void(const Check&)>& check_more) {
  const std::string mine = shared_arguments(call);
  const Check check(ranks->rank());
  const auto check_own = [&] {
    check_arguments(check, ranks->rank(), ranks->size(), call);
    check_options(check, call.options, ranks->communicator() != nullptr);
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
  ranks->unite(std::as_writable_bytes(std::span(most)));
  if (most[0] == 0 && most[2] == ~most[3]) return most[1] != 0;

  // A rank is wrong, or ranks differ: which, and why.
  const std::string of_rank_0 = text_of(0, *ranks, mine);
  agree(*ranks, [&] {
    check_own();
    require_same_arguments(ranks->rank(), mine, of_rank_0);
    check_more(check);
  });
  return true;
}

template bool AttentionState::agreed(const Call<float>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<double>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<Bf16>&, const std::function<void(const Check&)>&);
template bool AttentionState::agreed(const Call<Fp16>&, const std::function<void(const Check&)>&);

}  // namespace ring_attention
