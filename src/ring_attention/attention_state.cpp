#include "ring_attention/attention_state.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/context_memory.hpp"

namespace ring_attention {
namespace {

void check_options(const Check& check, const Options& options, bool over_mpi) {
  int level = MPI_THREAD_MULTIPLE;
  if (over_mpi) check_mpi(MPI_Query_thread(&level));
  check(options.threads >= 1, "options.threads is at least 1");
  check(over_mpi || options.transport == TransportKind::overlapped,
        "options.transport is odd-even, which MPI alone has: the default gives the same bits");
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
