#include "protocols/mpi_calls.hpp"

#include <mpi.h>

#include <map>

namespace ring_attention::test {
namespace {

Trace* recorded = nullptr;
bool moves_nothing = false;
std::map<const MPI_Request*, Event> open;  // what the requests at these addresses move

void note(Act act, Event event) {
  if (recorded == nullptr) return;
  event.act = act;
  recorded->push_back(event);
}

Event begin(Side side, const void* memory, MPI_Count count, MPI_Datatype type, int channel) {
  MPI_Count bytes = 0;
  PMPI_Type_size_x(type, &bytes);
  const Event event{Act::lend, side, channel, static_cast<const std::byte*>(memory),
                    static_cast<std::size_t>(count * bytes)};
  note(Act::lend, event);
  note(Act::post, event);
  return event;
}

void end(const Event& event) {
  note(Act::wait, event);
  note(Act::give_back, event);
}

}  // namespace

void mpi_calls::record(Trace* trace, bool dry) {
  recorded = trace;
  moves_nothing = dry;
  open.clear();
}

}  // namespace ring_attention::test

using namespace ring_attention::test;

int MPI_Send_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  const Event event = begin(Side::send, data, count, type, tag);
  const int code = moves_nothing ? MPI_SUCCESS : PMPI_Send_c(data, count, type, to, tag, comm);
  end(event);
  return code;
}

int MPI_Recv_c(void* data, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
               MPI_Status* status) {
  const Event event = begin(Side::receive, data, count, type, tag);
  const int code = moves_nothing ? MPI_SUCCESS : PMPI_Recv_c(data, count, type, from, tag, comm, status);
  end(event);
  return code;
}

int MPI_Isend_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request* request) {
  open[request] = begin(Side::send, data, count, type, tag);
  return PMPI_Isend_c(data, count, type, to, tag, comm, request);
}

int MPI_Irecv_c(void* data, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                MPI_Request* request) {
  open[request] = begin(Side::receive, data, count, type, tag);
  return PMPI_Irecv_c(data, count, type, from, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request requests[], int* done, MPI_Status statuses[]) {
  const int code = PMPI_Testall(count, requests, done, statuses);
  if (*done != 0)
    for (int at = 0; at < count; ++at)
      if (const auto found = open.find(&requests[at]); found != open.end()) {
        end(found->second);
        open.erase(found);
      }
  return code;
}

int MPI_Barrier(MPI_Comm comm) {
  note(Act::barrier, {});
  return moves_nothing ? MPI_SUCCESS : PMPI_Barrier(comm);
}
