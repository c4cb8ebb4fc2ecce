#include "ring_attention/attention_ranks.hpp"

#include "ring_attention/mpi/collectives.hpp"

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

class MpiRanks : public AttentionRanks {
 public:
  explicit MpiRanks(MPI_Comm caller) : comm_(duplicate(caller)) {}

  [[nodiscard]] AllToAll& all() override { return all_; }
  void unite(std::span<std::byte> bytes) override { ring_attention::unite(comm_, bytes); }
  [[nodiscard]] std::unique_ptr<Links> make_links(const RankGrid& grid) override {
    return std::make_unique<MpiLinks>(comm_, grid.ulysses, grid.ring);
  }
  [[nodiscard]] bool may_have_threads() const override {
    int level = MPI_THREAD_SINGLE;
    check_mpi(MPI_Query_thread(&level));
    return level >= MPI_THREAD_FUNNELED;
  }

 private:
  Communicator comm_;
  MpiAllToAll all_{comm_};
};

}  // namespace

std::shared_ptr<AttentionRanks> mpi(MPI_Comm comm) {
  const auto end = [](AttentionRanks* ranks) {  // after MPI_Finalize there is nothing to free
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised == 0) delete ranks;
  };
  return {new MpiRanks(comm), end};
}

}  // namespace ring_attention
