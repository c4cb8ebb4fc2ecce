// A program that ends as its argument says, for endings_test.py.

#include <stdexcept>
#include <string>

#include "ring_attention/mpi/agreement.hpp"

using namespace ring_attention;

namespace {

void wait_for_all(const Communicator& comm) { check_mpi(MPI_Barrier(comm.handle())); }

int end(const std::string& how, const Communicator& comm) {
  if (how == "well") return 0;
  if (how == "one-bad-code") return comm.rank() == 1 ? 1 : 0;
  if (how == "agreed") {
    agree(comm, [&] {
      if (comm.rank() >= 1) throw InputError("rank " + std::to_string(comm.rank()) + " cannot read q.npy");
    });
  }
  if (how == "different") require_same(comm, "seq", comm.rank() == 2 ? 4 : 5);
  if (how == "promise") require_world_size(comm, comm.size() + 1);
  if (how == "alone") require(comm.rank() != 1, "only here");
  if (how == "alone-input" && comm.rank() == 1) throw InputError("a file only rank 1 reads");
  if (how == "alone-foreign" && comm.rank() == 1) throw std::out_of_range("from the standard library");
  if (how == "alone-number" && comm.rank() == 1) throw 7;  // NOLINT: not an exception class
  if (how == "too-short" || how == "too-long") {
    int number = 0;
    if (comm.rank() == 0)
      check_mpi(MPI_Send(&number, how == "too-long" ? 2 : 0, MPI_CHAR, 1, 0, comm.handle()));
    if (comm.rank() == 1) check_mpi(MPI_Recv(&number, 1, MPI_CHAR, 0, 0, comm.handle(), MPI_STATUS_IGNORE));
  }
  wait_for_all(comm);  // where the others wait when one rank is gone
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  return mpi_main(argc, argv, [&](const Communicator& comm) { return end(how, comm); });
}
