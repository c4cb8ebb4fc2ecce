#include "ring_attention/app/bench_command.hpp"

#include <cstdio>

#include "ring_attention/app/bench_ring.hpp"
#include "ring_attention/app/table.hpp"
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

  explicit BenchOnCpu(int threads) : threads_(threads) {}

  CpuEngine begin(const Shape& q, const Scoring& scoring, const Runs& runs) {
    q_ = Tensor<float>(q.with_seq(count(runs)));
    fill_random(q_.view(), {.stream = 0}, q, runs);
    CpuEngine engine(scoring, {.threads = threads_});
    engine.begin(q_, runs);
    return engine;
  }

  static KvBuffer<float> buffer(const Shape& kv, const Placement& placement) {
    KvBuffer<float> buffer(kv, placement);
    for (int rank = 0; rank < placement.ranks(); ++rank)  // of unequal shards the largest one fills it
      if (placement.tokens(rank) == placement.max_tokens()) fill(buffer.elements(rank), kv);
    return buffer;
  }
  static KvParcel<float> parcel(const Shape& kv, const Placement& placement, int rank) {
    KvParcel<float> parcel(kv, placement, rank);
    fill(parcel.elements(), kv);
    return parcel;
  }
  /// What one rank holds: q, out, and a KvBuffer or two of a parcel.
  static Index bytes(const Shape& q, const Shape& kv, Index tokens) {
    return static_cast<Index>(sizeof(float)) *
           (2 * q.with_seq(tokens).size() + 4 * kv.with_seq(tokens).size());
  }
  static OverlappedRing link(const Communicator& comm, Index) { return OverlappedRing(comm); }
  static void synchronize() {}

 private:
  static void fill(std::span<float> elements, const Shape& kv) {
    const Shape rows{1, 1, static_cast<Index>(elements.size()) / kv.dim, kv.dim};
    fill_random(View<float>(elements.data(), rows), {.stream = 1}, rows, whole(rows.seq));
  }

  int threads_;
  Tensor<float> q_;
};

/// All ranks end together when one of them cannot have the memory.
template <class Device>
void require_memory(const Device& device, const Communicator& comm, const BenchOptions& options) {
  const Index tokens = Placement(Layout::contiguous, options.seq, comm.size()).max_tokens();
  const Index bytes = device.bytes(options.q(), options.kv(), tokens);
  agree(comm, [&] {
    if (!allocation::available(bytes))
      throw InputError("rank " + std::to_string(comm.rank()) + " cannot have " + human_bytes(bytes) +
                       " of memory for its shards: use more ranks on more hosts, or a shorter sequence");
  });
}

template <class Device>
void measure(BenchReport& report, Device& device, const Communicator& comm, const BenchOptions& options,
             Activity& activity) {
  require_memory(device, comm, options);
  report.element_bytes = sizeof(typename Device::Element);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
    if (layout == Layout::zigzag && (!options.causal || comm.size() == 1)) continue;  // the same work
    RingBench bench(device, comm, options, layout, activity);
    report.hop_bytes = bench.hop_bytes();
    report.placements.push_back(bench.measure(options.repetitions));
  }
}

}  // namespace

int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity,
                  Watchdog& watchdog) {
  agree(comm, [&] { validate(options); });
  require_world_size(comm, options.ranks);
  watchdog.expect(std::chrono::duration<double>(options.timeout), comm.rank());

  BenchReport report;
  report.ranks = comm.size();
  report.element = "float32";
  const int threads = options.threads > 0 ? static_cast<int>(options.threads)
                                          : std::max(1, usable_cores() / ranks_on_this_host(comm));
  report.kernel = "fast, " + std::string(name_of(best_isa())) + ", " + counted(threads, "thread") + " a rank";
  BenchOnCpu device(threads);
  measure(report, device, comm, options, activity);

  if (comm.rank() == 0)
    std::fputs((options.json ? to_json(report, options) : to_text(report, options)).c_str(), stdout);
  return 0;
}

}  // namespace ring_attention
