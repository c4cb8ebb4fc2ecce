// A ring in which rank 1 does what the first argument says in the middle of step 1, for faults_test.py.
// The second argument is the watchdog's time-out in seconds.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "program/activity_observer.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

using namespace ring_attention;

namespace {

void inject(const std::string& fault) {
  std::printf("pid %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "kill") raise(SIGKILL);
  if (fault == "sleep")
    for (;;) pause();
  if (fault == "throw") throw Error("a mishap in the middle");
}

/// Lets `fault` happen on rank 1 at the end of the compute of step 1.
class FaultyEngine : public BlockwiseEngine<float> {
 public:
  FaultyEngine(int rank, std::string fault) : BlockwiseEngine({}), rank_(rank), fault_(std::move(fault)) {}
  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    BlockwiseEngine::accumulate(kv, progress);
    if (rank_ == 1 && step_ == 1) inject(fault_);
    ++step_;
  }

 private:
  int rank_;
  std::string fault_;
  int step_ = 0;
};

int ring_with(const std::string& fault, double timeout, const Communicator& comm) {
  // With different lengths each rank alone is consistent.
  const Index seq = 64 + (fault == "disagree" && comm.rank() == 1 ? 16 : 0);
  const Placement placement(PlacementKind::contiguous, seq, comm.size());
  const TokenRanges rows = placement.ranges(comm.rank());
  const Tensor<float> q({1, 1, count(rows), 4});
  KvParcel<float> kv({1, 1, seq, 4}, placement, comm.rank());
  FaultyEngine engine(comm.rank(), fault);
  engine.begin(q, rows);
  Activity activity;
  ActivityObserver observer(activity);
  const auto transport = observed(std::make_unique<OddEvenTransport>(comm), {&observer}, Channel::kv);
  const Watchdog watchdog(activity, std::chrono::duration<double>(timeout), comm.rank());
  ring_forward(engine, *transport, kv);
  return 0;
}

/// One exchange in which rank 0 sends `length` bytes where 8 are due.
int exchange_with(std::size_t length, const Communicator& comm) {
  std::vector<std::byte> mine(comm.rank() == 0 ? length : 8), theirs(8);
  OddEvenTransport transport(comm);
  transport.start({mine, theirs});
  transport.finish();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  const double timeout = argc > 2 ? std::stod(argv[2]) : 60;
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    if (fault == "short") return exchange_with(4, comm);
    if (fault == "long") return exchange_with(16, comm);
    return ring_with(fault, timeout, comm);
  });
}
