#include "program/run/cuda.hpp"

#include "cli/own_gpu.hpp"
#include "cli/table.hpp"
#include "program/gpu_links.hpp"
#include "program/watched.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {
namespace {

using cuda::DeviceMemory;
using cuda::DeviceTensor;
using cuda::type_of;

constexpr const char* sharing = "ranks share a GPU: correctness only, times mean nothing";

/// A rank's GPU: q, k, v and dO of type T there, sums and results in fp32.
template <class T, class Transports>
class Gpu {
 public:
  using Value = float;

  explicit Gpu(const RunContext& place)
      : place_(place),
        share_(place.comm),
        transports_({place.comm, share_, place.options.timeout, place.activity, stream_.handle(),
                     most_bytes(place)}) {
    const cuda::DeviceTraits device = cuda::traits_for(with({}));
    const auto dim = static_cast<int>(place.input.q().dim);
    agree(place.comm, [&] {
      forward_ = &cuda::choose_forward(place.options.kernel, device, type_of<T>, dim);
      if (place.options.wants_gradients())
        backward_ = &cuda::choose_backward(place.options.backward_kernel, device, type_of<T>, dim);
    });
    if (share_.anywhere() && place.comm.rank() == 0) std::fprintf(stderr, "warning: %s\n", sharing);
  }

  void describe(RunReport& report, RankReport&) const {
    report.device = cuda::name_of(cuda::current_device());
    report.engine = "cuda";
    report.isa = report.device + ", " + cuda::name_of(type_of<T>) + ", forward " + forward_->name;
    if (backward_ != nullptr) report.isa += std::string(", backward ") + backward_->name;
    report.wire = cuda::name_of(type_of<T>);
    report.transport = Transports::name;
    if (share_.anywhere()) report.warnings.emplace_back(sharing);
  }

  /// q, k, v and dO are rounded, and on the way p and dS.
  [[nodiscard]] double input_roundoff() const { return 2 * cuda::unit_roundoff(type_of<T>); }

  /// q and the state (with gradients also dO and dQ), four KV shards (and six of dK,dV), and an array on its way.
  void require_memory() const {
    const Index q = place_.largest_q_shard(), kv = place_.largest_kv_shard();
    const Index wide = sizeof(float), narrow = sizeof(T);
    const Index bytes = narrow * (q + 4 * kv) + wide * (q + std::max(q, kv)) + 40 * q / place_.input.q().dim +
                        (place_.options.wants_gradients() ? narrow * q + wide * (q + 6 * kv) : 0);
    require_gpu_memory(place_.comm, share_, bytes);
  }

  void read_keys(const ReadKeys<float>& read) {
    kv_.emplace(place_.input.kv(), place_.keys, place_.comm.rank(), DeviceMemory{stream_.handle()});
    Tensor<float> host(kv_->k().shape());
    read(InputArray::k, host);
    cuda::upload<T>(kv_->k(), host, stream_.handle());
    read(InputArray::v, host);
    cuda::upload<T>(kv_->v(), host, stream_.handle());
  }

  AttentionResult<float> forward(const Tensor<float>& q, RankReport& mine) {
    q_ = cuda::uploaded<T>(q, stream_.handle());
    auto transport = watched(0);
    CudaEngine<T> engine(place_.input.scoring(), with(forward_->name));
    engine.begin(q_, place_.query_ranges);
    ring_forward(engine, transport, *kv_);
    synchronize();  // the last step may take as long as it likes
    attended_ = engine.finish();
    mine.forward_exposed_seconds = count_statistics(mine, transport.statistics());
    kv_.reset();
    return {cuda::downloaded(attended_.out, stream_.handle()),
            cuda::downloaded(attended_.lse, stream_.handle())};
  }

  Gradients<float> backward(const Tensor<float>&, const AttentionResult<float>&,
                            const Tensor<float>& grad_out, RankReport& mine) {
    const StreamHandle stream = stream_.handle();
    const auto upstream = cuda::uploaded<T>(grad_out, stream);
    KvParcel<float, DeviceMemory> sums(place_.input.kv(), place_.keys, place_.comm.rank(),
                                       DeviceMemory{stream});
    auto kv_transport = watched(0), gradient_transport = watched(1);
    CudaBackward<T> engine(place_.input.scoring(), with(backward_->name));
    engine.begin({q_, attended_.out, attended_.lse, upstream}, place_.query_ranges);
    ring_backward(engine, kv_transport, gradient_transport, *kv_, sums);
    synchronize();
    Gradients<float> gradients{cuda::downloaded(engine.finish(), stream),
                               cuda::downloaded<float>(sums.k(), stream),
                               cuda::downloaded<float>(sums.v(), stream)};
    mine.backward_exposed_seconds = count_statistics(mine, kv_transport.statistics()) +
                                    count_statistics(mine, gradient_transport.statistics());
    kv_.reset();
    return gradients;
  }

 private:
  using StreamHandle = cuda::StreamHandle;

  /// K,V have channel 0, their gradients channel 1.
  [[nodiscard]] auto watched(int channel) {
    using Base = decltype(transports_.transport(channel));
    return Watched<Base>(
        place_.activity, [&] { return transports_.transport(channel); },
        channel == 0 ? Watched<Base>::Channel::kv : Watched<Base>::Channel::gradients);
  }
  void synchronize() const {
    stream_.synchronize([&] { place_.activity.beat(); });
  }
  [[nodiscard]] CudaOptions with(const std::string& kernel) const {
    return {stream_.handle(), kernel, Transports::reserved_sms(place_.comm)};
  }
  /// Of the largest parcel: one of gradients, where there are any.
  static std::size_t most_bytes(const RunContext& place) {
    const std::size_t element = place.options.wants_gradients() ? sizeof(float) : sizeof(T);
    return static_cast<std::size_t>(2 * place.largest_kv_shard()) * element;
  }

  const RunContext& place_;
  GpuShare share_;
  cuda::Stream stream_;
  Transports transports_;
  const cuda::ForwardKernel* forward_ = nullptr;
  const cuda::BackwardKernel* backward_ = nullptr;
  std::optional<KvParcel<T, DeviceMemory>> kv_;
  DeviceTensor<T> q_;
  DeviceAttentionResult attended_;
};

template <class T, class Transports>
int run_over(const RunContext& place) {
  Gpu<T, Transports> gpu(place);
  return Job(place, gpu)();
}

template <class T>
int run_with(const RunContext& place) {
#ifdef RING_ATTENTION_HAS_NCCL
  if (place.options.ring != "staged") return run_over<T, NcclTransports>(place);
#endif
  return run_over<T, StagedTransports>(place);
}

}  // namespace

void require_gpus(const Communicator& comm, const GpuOptions& options) {
#ifndef RING_ATTENTION_HAS_NCCL
  agree(comm, [&] {
    if (options.ring == "nccl")
      throw InputError(
          "--ring nccl: this program was built without NCCL: build it with NCCL_ROOT set, or use staged");
  });
#endif
  (void)use_own_gpu(comm, options.share_gpu);
}

int run_on_gpus(const RunContext& place) {
  const std::string& type = place.options.type;
  return type == "bf16"   ? run_with<Bf16>(place)
         : type == "fp16" ? run_with<cuda::Fp16>(place)
                          : run_with<float>(place);
}

}  // namespace ring_attention
