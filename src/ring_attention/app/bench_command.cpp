#include "ring_attention/app/bench_command.hpp"

#include <cstdio>

#include "ring_attention/app/bench_cuda.hpp"
#include "ring_attention/app/bench_ring.hpp"
#include "ring_attention/app/host_memory.hpp"
#include "ring_attention/app/run_cuda.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/ring/overlapped_ring.hpp"

namespace ring_attention {
namespace {

/// The host: the fast engine in float, and MPI.
class BenchOnCpu {
 public:
  using Element = float;
  using Memory = HostMemory;

  explicit BenchOnCpu(int threads) : threads_(threads) {}

  CpuEngine begin(const Shape& q, const Scoring& scoring, const Runs& runs) {
    q_ = Tensor<float>(q.with_seq(count(runs)));
    fill_random(q_.view(), {.stream = 0}, q, runs);
    CpuEngine engine(scoring, {.threads = threads_});
    engine.begin(q_, runs);
    return engine;
  }

  static HostMemory memory() { return {}; }
  static void fill(std::span<float> elements, Index dim) {
    const Shape rows{1, 1, static_cast<Index>(elements.size()) / dim, dim};
    fill_random(View<float>(elements.data(), rows), {.stream = 1}, rows, whole(rows.seq));
  }
  /// For shards of these shapes: q and out, and four of K or V.
  static void require_memory(const Communicator& comm, const Shape& q, const Shape& kv) {
    require_host_memory(comm, static_cast<Index>(sizeof(float)) * (2 * q.size() + 4 * kv.size()));
  }
  static OverlappedRing link(const Communicator& comm, Index) { return OverlappedRing(comm); }
  static void synchronize() {}

 private:
  int threads_;
  Tensor<float> q_;
};

BenchReport bench_on_cpu(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  const int threads = options.threads > 0 ? static_cast<int>(options.threads)
                                          : std::max(1, usable_cores() / ranks_on_this_host(comm));
  BenchOnCpu device(threads);
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
