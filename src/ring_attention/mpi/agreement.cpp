#include "ring_attention/mpi/agreement.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <new>
#include <optional>
#include <thread>

#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

std::string out_of_memory(int rank) {
  return "rank " + std::to_string(rank) +
         " is out of memory: use more ranks on more hosts, or smaller arrays";
}

/// The text of the error of `validate` of which all ranks are to know, or none.
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

}  // namespace

void agree(int rank, int size, const Unite& unite, const std::function<void()>& validate) {
  const std::optional<std::string> failure = failure_of(rank, validate);
  std::vector<std::byte> failed(static_cast<std::size_t>(size));
  failed[static_cast<std::size_t>(rank)] = std::byte{failure.has_value()};
  unite(failed);
  const auto lowest = std::ranges::find(failed, std::byte{1});
  if (lowest == failed.end()) return;
  throw AgreedError(text_of(static_cast<int>(lowest - failed.begin()), rank, unite, failure.value_or("")));
}

void agree(const Communicator& comm, const std::function<void()>& validate) {
  agree(comm.rank(), comm.size(), [&](std::span<std::byte> bytes) { unite(comm, bytes); }, validate);
}

std::string text_of(int root, int rank, const Unite& unite, std::string text) {
  std::size_t length = rank == root ? text.size() : 0;  // zeros change no bit
  unite(std::as_writable_bytes(std::span(&length, 1)));
  if (rank != root) text.assign(length, '\0');
  unite(std::as_writable_bytes(std::span(text)));
  return text;
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

void require_world_size(const Communicator& comm, Index promised) {
  if (promised > 0 && comm.size() != promised)
    throw AgreedError("there are " + std::to_string(comm.size()) + (comm.size() == 1 ? " rank" : " ranks") +
                      " where the caller promises " + std::to_string(promised) +
                      (comm.size() == 1 ? ": start the program with the mpirun of the MPI it was built with"
                                        : ": start the program with mpirun -n " + std::to_string(promised)));
}

namespace {

/// An error may quote what a user wrote, such as a value or a file name with a line break.
std::string one_line(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return text;
}

/// `body` between initialise and finalise; the communicator must be gone before MPI_Finalize.
int run_body(const std::function<int(const Communicator&)>& body) {
  const Communicator comm(MPI_COMM_WORLD);
  try {
    int code = body(comm);
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &code, 1, MPI_INT, MPI_MAX, comm.handle()));
    return code;
  } catch (const AgreedError& error) {
    if (comm.rank() == 0) std::fprintf(stderr, "error: %s\n", one_line(error.what()).c_str());
    return 2;
  } catch (const std::exception& error) {
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    std::fprintf(stderr, "[rank %d] error: %s\n", comm.rank(),
                 one_line(no_memory ? out_of_memory(comm.rank()) : error.what()).c_str());
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
