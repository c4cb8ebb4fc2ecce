#include "program/bench/cuda.hpp"

#include "cli/table.hpp"
#include "program/bench/ring.hpp"
#include "program/gpu_links.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cuda/engine.hpp"

namespace ring_attention {
namespace {

using cuda::DeviceMemory;

/// A rank's GPU.
template <class T, class Transports>
class BenchOnGpu {
 public:
  using Element = T;
  using Memory = DeviceMemory;

  BenchOnGpu(const Communicator& comm, const BenchOptions& options, Activity& activity)
      : comm_(comm),
        activity_(activity),
        share_(comm),
        options_{stream_.handle(), options.kernel, Transports::reserved_sms(comm)},
        transports_({comm, share_, options.timeout, activity, stream_.handle(), most_bytes(options, comm)}) {
    agree(comm, [&] {
      options_.kernel = cuda::choose_forward(options.kernel, cuda::traits_for(options_), cuda::type_of<T>,
                                             static_cast<int>(options.dim))
                            .name;
    });
  }

  [[nodiscard]] CudaEngine<T> engine(const Scoring& scoring) const {
    return CudaEngine<T>(scoring, options_);
  }
  [[nodiscard]] DeviceMemory memory() const { return {stream_.handle()}; }
  void fill(std::span<T> elements, Index dim, std::uint64_t stream) const {
    Tensor<float> host({1, 1, static_cast<Index>(elements.size()) / dim, dim});
    fill_random(host.view(), {.stream = stream});
    cuda::upload<T>(View<T>(elements.data(), host.shape()), host, stream_.handle());
  }

  /// For shards of these shapes: q, the state, four of K or V, and one on its way through fp32.
  void require_memory(const Shape& q, const Shape& kv) const {
    const Index wide = sizeof(float), narrow = sizeof(T);
    const Index bytes =
        narrow * (q.size() + 4 * kv.size()) + wide * (q.size() + std::max(q.size(), 2 * kv.size()));
    require_gpu_memory(comm_, share_, bytes);
  }

  auto transport() { return transports_.transport(0); }
  void synchronize() const {
    stream_.synchronize([&] { activity_.beat(); });
  }

  /// Of the report: what computed, and what the times are worth.
  [[nodiscard]] std::string words() const {
    return cuda::name_of(cuda::current_device()) + ", " + options_.kernel + ", " + Transports::name +
           " ring" + (share_.anywhere() ? "; ranks share a GPU: correctness only, times mean nothing" : "");
  }

 private:
  /// Of the largest parcel.
  static std::size_t most_bytes(const BenchOptions& options, const Communicator& comm) {
    const Index tokens = Placement(PlacementKind::contiguous, options.seq, comm.size()).max_tokens();
    return static_cast<std::size_t>(2 * options.kv().with_seq(tokens).size()) * sizeof(T);
  }

  const Communicator& comm_;
  Activity& activity_;
  GpuShare share_;
  cuda::Stream stream_;
  CudaOptions options_;
  Transports transports_;
};

template <class T, class Transports>
BenchReport bench_over(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  BenchOnGpu<T, Transports> device(comm, options, activity);
  BenchReport report = measure_ring(device, comm, options, activity);
  report.element = options.type;
  report.kernel = device.words();
  return report;
}

template <class T>
BenchReport bench_with(const Communicator& comm, const BenchOptions& options, Activity& activity) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (options.ring != "staged") return bench_over<T, NcclTransports>(comm, options, activity);
#endif
  return bench_over<T, StagedTransports>(comm, options, activity);
}

}  // namespace

BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  return options.type == "bf16"   ? bench_with<Bf16>(comm, options, activity)
         : options.type == "fp16" ? bench_with<cuda::Fp16>(comm, options, activity)
                                  : bench_with<float>(comm, options, activity);
}

}  // namespace ring_attention
