#include "ring_attention/mpi/communicator.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <new>
#include <thread>

namespace ring_attention {

void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(located("MPI: " + std::string(text.data(), static_cast<std::size_t>(length)), where));
}

Communicator::Communicator(MPI_Comm from) {
  check_mpi(MPI_Comm_dup(from, &comm_));
  initialise();
}

Communicator::Communicator(const Communicator& from, int colour) {
  check_mpi(MPI_Comm_split(from.handle(), colour, from.rank(), &comm_));
  initialise();
}

void Communicator::initialise() {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

Communicator::~Communicator() {
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

namespace {

template <class T>
T reduced(const Communicator& comm, T value, MPI_Datatype type, MPI_Op operation) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, operation, comm.handle()));
  return value;
}

std::string out_of_memory(int rank) {
  return "rank " + std::to_string(rank) +
         " is out of memory: use more ranks on more hosts, or smaller arrays";
}

}  // namespace

std::optional<std::string> failure_of(int rank, const std::function<void()>& validate) {
  try {
    validate();
  } catch (const InputError& error) {
    return error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    return InputError(error.path1().string(), error.code().message(), "check the path").what();
  } catch (const std::bad_alloc&) {
    return out_of_memory(rank);
  }
  return std::nullopt;
}

void agree(const Communicator& comm, const std::function<void()>& validate) {
  const std::optional<std::string> failure = failure_of(comm.rank(), validate);
  const int none = comm.size();
  const int culprit = reduced(comm, failure ? comm.rank() : none, MPI_INT, MPI_MIN);
  if (culprit == none) return;
  std::string message = failure.value_or("");
  broadcast(comm, message, culprit);
  throw AgreedError(message);
}

void require_same(const Communicator& comm, const std::string& field, const std::string& value) {
  std::string expected = value;
  broadcast(comm, expected);
  agree(comm, [&] {
    if (value != expected)
      throw InputError("the ranks disagree on " + field + ": rank 0 has " + expected + ", rank " +
                       std::to_string(comm.rank()) + " has " + value);
  });
}

void sum_over_ranks(const Communicator& comm, std::span<double> values) {
  check_mpi(MPI_Allreduce_c(MPI_IN_PLACE, values.data(), static_cast<MPI_Count>(values.size()), MPI_DOUBLE,
                            MPI_SUM, comm.handle()));
}

void max_over_ranks(const Communicator& comm, std::span<std::uint64_t> values) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_UINT64_T, MPI_MAX,
                          comm.handle()));
}

double max_over_ranks(const Communicator& comm, double value) {
  const bool numbers = all_of_ranks(comm, !std::isnan(value));  // MPI_MAX may drop a NaN
  const double most = reduced(comm, value, MPI_DOUBLE, MPI_MAX);
  return numbers ? most : std::numeric_limits<double>::quiet_NaN();
}

Index min_over_ranks(const Communicator& comm, Index value) {
  return reduced(comm, value, MPI_INT64_T, MPI_MIN);
}

Index sum_over_ranks(const Communicator& comm, Index value) {
  return reduced(comm, value, MPI_INT64_T, MPI_SUM);
}

bool all_of_ranks(const Communicator& comm, bool value) {
  return reduced(comm, value ? 1 : 0, MPI_INT, MPI_MIN) != 0;
}

void barrier(const Communicator& comm) { check_mpi(MPI_Barrier(comm.handle())); }

void require_world_size(const Communicator& comm, Index promised) {
  if (promised > 0 && comm.size() != promised)
    throw AgreedError("there are " + std::to_string(comm.size()) + (comm.size() == 1 ? " rank" : " ranks") +
                      " where the caller promises " + std::to_string(promised) +
                      ": start the program with the mpirun of the MPI it was built with");
}

namespace {

/// `body` between initialise and finalise; the communicator must be gone before MPI_Finalize.
int run_body(const std::function<int(const Communicator&)>& body) {
  const Communicator comm(MPI_COMM_WORLD);
  try {
    return reduced(comm, body(comm), MPI_INT, MPI_MAX);
  } catch (const AgreedError& error) {
    if (comm.rank() == 0) std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    std::fprintf(stderr, "[rank %d] error: %s\n", comm.rank(),
                 no_memory ? out_of_memory(comm.rank()).c_str() : error.what());
    std::fflush(nullptr);
    // MPICH's launcher loses output that it has not read when a rank aborts: 1 message of 30 without this pause.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;  // not reached
  }
}

}  // namespace

int mpi_main(int& argc, char**& argv, const std::function<int(const Communicator&)>& body) {
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return 2;
  const int code = run_body(body);
  MPI_Finalize();
  return code;
}

}  // namespace ring_attention
