// MPI over three functions of the page: a message out, a message in, and whether one is there. A send of more than `eager` bytes
// waits for its receiver: a receive tells the sender that it is posted, and the k-th send of a channel waits for the k-th receive.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

// What the page does. All ranks share one thread: where one waits, the page suspends it and others run.
#define PAGE(name) __attribute__((import_module("page"), import_name(#name))) extern "C"
/// The page copies the bytes.
PAGE(put) void page_put(const void* bytes, int size, int to, int channel);
/// Waits for a message, writes it to `bytes` and returns its size. A message of more than `room` bytes ends the run.
PAGE(take) int page_take(void* bytes, int room, int from, int channel);
/// Is a message there? If not, others run first.
PAGE(there) int page_there(int from, int channel);

// What a rank does.
namespace {

constexpr MPI_Count eager = 64 << 10;

bool is_alone(MPI_Comm comm) { return comm % 2 != 0; }
int peer(int rank, MPI_Comm comm) { return is_alone(comm) ? page_rank : rank; }

enum Kind { message, posted, collective };
/// Messages of one tag and communicator; with a Kind added, those of one kind.
int channel(int tag, MPI_Comm comm) { return (tag << 10) + ((comm & 255) << 2); }

/// A receive, or a large send.
struct Request {
  int peer = 0, channel = 0;
  int number = 0;  ///< of a send, among those of its channel
  void* to = nullptr;
  int room = 0;
};
std::map<MPI_Request, Request> requests;
MPI_Request last_request = MPI_REQUEST_NULL;

/// Sends to a rank in a channel, and those whose receives are posted.
std::map<std::pair<int, int>, int> sends, posted_sends;

int begin(const Request& request, MPI_Request* handle) {
  *handle = ++last_request;
  requests[*handle] = request;
  return MPI_SUCCESS;
}

/// Is a send's receive posted? \param waits  until it is
bool is_posted(const Request& send, bool waits) {
  for (int& number = posted_sends[{send.peer, send.channel}]; number < send.number; ++number) {
    if (!waits && page_there(send.peer, send.channel + posted) == 0) return false;
    page_take(nullptr, 0, send.peer, send.channel + posted);
  }
  return true;
}

bool is_done(MPI_Request handle) {
  if (handle == MPI_REQUEST_NULL) return true;
  const Request& one = requests.at(handle);
  return one.number > 0 ? is_posted(one, false) : page_there(one.peer, one.channel + message) != 0;
}

int finish(MPI_Request* handle, MPI_Status* status = MPI_STATUS_IGNORE) {
  if (*handle == MPI_REQUEST_NULL) return MPI_SUCCESS;
  const Request one = requests.extract(*handle).mapped();
  *handle = MPI_REQUEST_NULL;
  if (one.number > 0 && is_posted(one, true)) return MPI_SUCCESS;
  const MPI_Status got{one.peer, page_take(one.to, one.room, one.peer, one.channel + message)};
  if (status != MPI_STATUS_IGNORE) *status = got;
  return MPI_SUCCESS;
}

/// The bytes of all ranks, in their order.
std::vector<char> everybody(const void* own, MPI_Count count, MPI_Datatype type, MPI_Comm comm) {
  const int size = static_cast<int>(count) * (type % 16), of = channel(0, comm) + collective;
  const int ranks = is_alone(comm) ? 1 : page_ranks;
  std::vector<char> all(static_cast<std::size_t>(ranks * size));
  for (int to = 0; to < ranks; ++to) page_put(own, size, peer(to, comm), of);
  for (int from = 0; from < ranks; ++from) page_take(all.data() + from * size, size, peer(from, comm), of);
  return all;
}

template <class T>
T reduced(T a, T b, MPI_Op op) {
  if constexpr (std::is_integral_v<T>)
    if (op == MPI_BOR) return static_cast<T>(a | b);
  if (op == MPI_SUM) return static_cast<T>(a + b);
  return op == MPI_MAX ? std::max(a, b) : std::min(a, b);
}

/// Values of all ranks to one of each, in the order of the ranks.
template <class T>
void reduce(const std::vector<char>& all, void* to, MPI_Count count, MPI_Op op) {
  auto* into = static_cast<T*>(to);
  const auto* from = reinterpret_cast<const T*>(all.data());
  std::copy_n(from, count, into);
  for (MPI_Count i = count; i < std::ssize(all) / MPI_Count{sizeof(T)}; ++i)
    into[i % count] = reduced(into[i % count], from[i], op);
}

}  // namespace

int MPI_Isend_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request* request) {
  Request send{peer(to, comm), channel(tag, comm)};
  send.number = ++sends[{send.peer, send.channel}];
  const MPI_Count bytes = count * (type % 16);
  page_put(data, static_cast<int>(bytes), send.peer, send.channel + message);
  *request = MPI_REQUEST_NULL;
  return bytes > eager ? begin(send, request) : MPI_SUCCESS;
}
int MPI_Irecv_c(void* data, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                MPI_Request* request) {
  const Request receive{peer(from, comm), channel(tag, comm), 0, data, static_cast<int>(count) * (type % 16)};
  page_put(nullptr, 0, receive.peer, receive.channel + posted);
  return begin(receive, request);
}
int MPI_Send_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend_c(data, count, type, to, tag, comm, &request);
  return finish(&request);
}
int MPI_Recv_c(void* data, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
               MPI_Status* status) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv_c(data, count, type, from, tag, comm, &request);
  return finish(&request, status);
}
int PMPI_Waitall(int count, MPI_Request handles[], MPI_Status statuses[]) {
  for (int i = 0; i < count; ++i)
    finish(handles + i, statuses == MPI_STATUSES_IGNORE ? statuses : statuses + i);
  return MPI_SUCCESS;
}
int PMPI_Testall(int count, MPI_Request handles[], int* done, MPI_Status statuses[]) {
  *done = std::all_of(handles, handles + count, is_done) ? 1 : 0;
  return *done == 0 ? MPI_SUCCESS : PMPI_Waitall(count, handles, statuses);
}

int PMPI_Barrier(MPI_Comm comm) {
  everybody(nullptr, 0, MPI_BYTE, comm);
  return MPI_SUCCESS;
}
int MPI_Allreduce_c(const void* own, void* to, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  const std::vector<char> all = everybody(own == MPI_IN_PLACE ? to : own, count, type, comm);
  if (type == MPI_BYTE) reduce<unsigned char>(all, to, count, op);
  if (type == MPI_INT) reduce<int>(all, to, count, op);
  if (type == MPI_INT64_T) reduce<std::int64_t>(all, to, count, op);
  if (type == MPI_UINT64_T) reduce<std::uint64_t>(all, to, count, op);
  if (type == MPI_FLOAT) reduce<float>(all, to, count, op);
  if (type == MPI_DOUBLE) reduce<double>(all, to, count, op);
  return MPI_SUCCESS;
}
int MPI_Allgather(const void* own, int count, MPI_Datatype type, void* to, int, MPI_Datatype, MPI_Comm comm) {
  std::ranges::copy(everybody(own, count, type, comm), static_cast<char*>(to));
  return MPI_SUCCESS;
}
int MPI_Bcast_c(void* data, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
  const int size = static_cast<int>(count) * (type % 16);
  std::copy_n(everybody(data, count, type, comm).begin() + root * size, size, static_cast<char*>(data));
  return MPI_SUCCESS;
}
int MPI_Comm_dup(MPI_Comm from, MPI_Comm* comm) {
  static MPI_Comm last[] = {MPI_COMM_WORLD, MPI_COMM_SELF};  // all ranks duplicate the world in one order
  last[is_alone(from) ? 1 : 0] += 2;
  *comm = last[is_alone(from) ? 1 : 0];
  return MPI_SUCCESS;
}
double MPI_Wtime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
