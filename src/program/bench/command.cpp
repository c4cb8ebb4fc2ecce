#include "program/bench/command.hpp"

#include <cstdio>

#include "program/bench/cuda.hpp"
#include "program/bench/ring.hpp"
#include "program/host_memory.hpp"
#include "program/run/cuda.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {
namespace {

/// The host: the fast engine in float, and MPI.
class BenchOnCpu {
 public:
  using Element = float;
  using Memory = HostMemory;

  BenchOnCpu(const Communicator& comm, int threads) : comm_(comm), threads_(threads) {}

  [[nodiscard]] CpuEngine engine(const Scoring& scoring) const {
    return CpuEngine(scoring, {.threads = threads_});
  }
  static HostMemory memory() { return {}; }
  static void fill(std::span<float> elements, Index dim, std::uint64_t stream) {
    const Shape rows{1, 1, static_cast<Index>(elements.size()) / dim, dim};
    fill_random(View<float>(elements.data(), rows), {.stream = stream});
  }
  /// For shards of these shapes: q and out, and four of K or V.
  void require_memory(const Shape& q, const Shape& kv) const {
    require_host_memory(comm_, static_cast<Index>(sizeof(float)) * (2 * q.size() + 4 * kv.size()));
  }
  [[nodiscard]] OverlappedTransport transport() const { return OverlappedTransport(comm_); }
  static void synchronize() {}

 private:
  const Communicator& comm_;
  int threads_;
};

BenchReport bench_on_cpu(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  const int threads = options.threads > 0 ? static_cast<int>(options.threads)
                                          : std::max(1, usable_cores() / ranks_on_this_host(comm));
  BenchOnCpu device(comm, threads);
  BenchReport report = measure_ring(device, comm, options, activity);
  report.element = "float32";
  report.kernel = "fast, " + std::string(name_of(best_isa())) + ", " + counted(threads, "thread") + " a rank";
  return report;
}

}  // namespace

int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity,
                  Watchdog& watchdog) {
  agree(comm, [&] { validate(options); });
  require_world_size(comm, options.ranks);
  watchdog.expect(std::chrono::duration<double>(options.timeout), comm.rank());

  if (options.device == "cuda") require_gpus(comm, options);
  BenchReport report = options.device == "cuda" ? bench_on_gpus(comm, options, activity)
                                                : bench_on_cpu(comm, options, activity);
  if (comm.rank() == 0)
    std::fputs((options.json ? to_json(report, options) : to_text(report, options)).c_str(), stdout);
  return 0;
}

}  // namespace ring_attention
