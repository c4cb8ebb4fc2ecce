#include "common/mpi_counter.hpp"

#include <mpi.h>

#include <map>

namespace {

using ring_attention::mpi_counter::Traffic;

std::map<int, Traffic> traffic_of_tag;
std::map<MPI_Request, int> tag_of_request;  // of the receives that were started last
bool computes = false;
double missing_since =
    -1;  // when the last MPI_Testall outside the compute found a message missing; else negative

void count_sent(int count, MPI_Datatype type, int tag) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  Traffic& traffic = traffic_of_tag[tag];
  ++traffic.hops;
  traffic.bytes += static_cast<ring_attention::Index>(count) * bytes;
}

/// Of the first request, if it is a receive; else 0.
int tag_of(int count, const MPI_Request* requests) {
  const auto known = count > 0 ? tag_of_request.find(requests[0]) : tag_of_request.end();
  return known == tag_of_request.end() ? 0 : known->second;
}

/// Calls MPI, and counts the time as exposed.
int timed(int tag, const auto& call) {
  const double begin = MPI_Wtime();
  const int code = call();
  if (!computes) traffic_of_tag[tag].exposed_seconds += MPI_Wtime() - begin;
  return code;
}

}  // namespace

namespace ring_attention::mpi_counter {

void reset() { traffic_of_tag.clear(); }
Traffic traffic(int tag) { return traffic_of_tag[tag]; }

void computing(bool now) {
  computes = now;
  missing_since = -1;
}

}  // namespace ring_attention::mpi_counter

int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  count_sent(count, type, tag);
  return timed(tag, [&] { return PMPI_Send(data, count, type, to, tag, comm); });
}

int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  return timed(tag, [&] { return PMPI_Recv(data, count, type, from, tag, comm, status); });
}

int MPI_Barrier(MPI_Comm comm) {
  return timed(0, [&] { return PMPI_Barrier(comm); });
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  count_sent(count, type, tag);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  const int code = PMPI_Irecv(data, count, type, from, tag, comm, request);
  tag_of_request[*request] = tag;
  return code;
}

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  return timed(tag_of(1, request), [&] { return PMPI_Wait(request, status); });
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  return timed(tag_of(count, requests), [&] { return PMPI_Waitall(count, requests, statuses); });
}

int MPI_Testall(int count, MPI_Request requests[], int* done, MPI_Status statuses[]) {
  const int tag = tag_of(count, requests);
  const double begin = missing_since >= 0 ? missing_since : MPI_Wtime();
  const int code = PMPI_Testall(count, requests, done, statuses);
  if (computes) return code;
  const double end = MPI_Wtime();
  traffic_of_tag[tag].exposed_seconds += end - begin;
  missing_since = *done != 0 ? -1 : end;
  return code;
}
