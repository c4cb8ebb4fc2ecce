// All work is on a stream of its own, between two events of the caller's stream: what a GpuAttention keeps (memory, tables,
// communicators) is then used in one order, whatever streams the caller has.

#include "ring_attention/gpu_attention.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <sstream>
#include <thread>

#include "ring_attention/core/text.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"
#include "ring_attention/parallel/context_memory.hpp"
#include "ring_attention/parallel/cuda_device.hpp"
#include "ring_attention/parallel/cuda_links.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

bool uses_nccl(const GpuOptions& options) {
#ifdef RING_ATTENTION_HAS_NCCL
  return options.transport != GpuOptions::Transport::staged;
#else
  return options.transport == GpuOptions::Transport::nccl;
#endif
}

}  // namespace

class GpuParts {
 public:
  /// Collective. Uses the current GPU.
  GpuParts(AttentionRanks& ranks, const GpuOptions& options, const RankGrid& grid)
      : made_for_(options),
        ulysses_(grid.ulysses.size),
        nccl_(uses_nccl(options)),
        alive_([this] { tell(observers_, &Observer::beats); }),
        links_(ranks.make_links(grid), compute_.handle(),
               {nccl_, options.timeout, alive_, options.share_gpu, true}) {}
  GpuParts(const GpuParts&) = delete;
  GpuParts& operator=(const GpuParts&) = delete;
  ~GpuParts() {
    try {
      if (std::uncaught_exceptions() == exceptions_) wait();
    } catch (const std::exception&) {  // NOLINT: the caller did not ask
    }
  }

  /// The observers of the next call, and of the waits for it.
  void observe(const Observers& by) { observers_ = by; }
  void wait() {
    const cuda::CurrentDevice gpu(device_);
    for (; !links_.poll(); alive_()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    cuda::synchronize(compute_.handle(), alive_);
  }
  /// \throws Error if a kernel or a message of an earlier call has failed
  void poll() {
    links_.poll();
    (void)end_.is_done();
  }

  [[nodiscard]] int device() const { return device_; }
  /// Was it made for these options?
  [[nodiscard]] bool serves(const GpuOptions& options, const RankGrid& grid) const {
    return ulysses_ == grid.ulysses.size && nccl_ == uses_nccl(options) &&
           made_for_.timeout == options.timeout && made_for_.share_gpu == options.share_gpu;
  }
  [[nodiscard]] Index unused_bytes() const { return pool_.unused_bytes(); }
  [[nodiscard]] CudaLinks& links() { return links_; }
  [[nodiscard]] cuda::StreamHandle stream() const { return compute_.handle(); }

  /// Where calls with this key keep their tables.
  [[nodiscard]] std::shared_ptr<const cuda::QueryTables>& tables(const std::string& key) {
    constexpr std::size_t most_tables = 64;  // a dropout has others in every step
    if (tables_.size() > most_tables) tables_.clear();
    return tables_[key];
  }
  /// The options of an engine.
  [[nodiscard]] CudaOptions engine(const std::string& kernel, const RankGrid& grid,
                                   std::shared_ptr<const cuda::QueryTables>& tables) {
    return {compute_.handle(), kernel, nccl_ && grid.ring.size > 1 ? nccl_sms : 0, 0, pool_, &tables};
  }

  /// Work that is enqueued while it lives begins after what is on the caller's stream, and what is enqueued there later
  /// begins after this work.
  class Between {
   public:
    Between(GpuParts& gpu, cuda::StreamHandle caller) : gpu_(gpu), caller_(caller) {
      gpu.begin_.record(caller);
      gpu.begin_.block(gpu.stream());
    }
    Between(const Between&) = delete;
    Between& operator=(const Between&) = delete;
    ~Between() {
      try {
        gpu_.end_.record(gpu_.stream());
        gpu_.end_.block(caller_);
      } catch (const Error&) {  // NOLINT: CUDA has failed, the next call says so
      }
    }

   private:
    GpuParts& gpu_;
    cuda::StreamHandle caller_;
  };

 private:
  int exceptions_ = std::uncaught_exceptions();
  Observers observers_;
  int device_ = cuda::current_device();
  GpuOptions made_for_;
  int ulysses_;
  bool nccl_;
  Progress alive_;
  cuda::Stream compute_;
  cuda::StreamPool pool_{compute_.handle()};
  std::map<std::string, std::shared_ptr<const cuda::QueryTables>> tables_;
  cuda::Event begin_, end_;
  CudaLinks links_;
};

namespace {

/// What can be said before any message of a GPU.
template <class T>
class GpuCheck {
 public:
  GpuCheck(const Check& check, [[maybe_unused]] const GpuOptions& options, GpuParts* gpu)
      : check_(check), gpu_(gpu) {
    const std::string why = cuda::why_no_device();
    check(why.empty(), why + ": give arrays of the host");
#ifndef RING_ATTENTION_HAS_NCCL
    check(!uses_nccl(options), "this library was built without NCCL: use GpuOptions::Transport::staged");
#endif
    device_ = cuda::current_device();
    check(gpu_ == nullptr || gpu_->device() == device_,
          "GPU " + std::to_string(device_) + " is current, and this GpuAttention began on GPU " +
              std::to_string(gpu_ == nullptr ? 0 : gpu_->device()));
    if (gpu_ != nullptr) gpu_->poll();
  }

  void arrays(const Call<T>& call, const SharedAttention& shared) const {
    call.each_array(shared, [&](const std::string& name, const auto& array, const Shape&) {
      if (array.size() == 0) return;
      const int device = cuda::device_of(array.data());
      check_(device >= 0, name + " is not in the memory of a GPU");
      check_(device == device_,
             name + " is in the memory of GPU " + std::to_string(device) + ", and GPU " +
                 std::to_string(device_) +
                 " is current: select the GPU of a rank before its first call (cudaSetDevice)");
    });
  }
  /// Where ranks share heads, messages come before most of the memory is allocated.
  void memory(const SharedAttention& shared, bool gradients) const {
    if (shared.grid.ulysses.size == 1) return;
    const Index bytes = context_bytes(shared, gradients, {sizeof(T), sizeof(T), sizeof(float)}),
                free = cuda::free_bytes() + (gpu_ == nullptr ? 0 : gpu_->unused_bytes());
    check_(bytes <= free, "the GPU has too little memory for " + std::to_string(bytes) + " bytes: " +
                              std::to_string(free) + " are free: use more GPUs, or a shorter sequence");
  }

 private:
  const Check& check_;
  GpuParts* gpu_;
  int device_;
};

/// What all ranks have the same, one line each.
std::string text_of(const GpuCall& how) {
  const GpuOptions& options = how.gpu;
  std::ostringstream text;
  text << "gpu.transport " << static_cast<int>(options.transport) << "\ngpu.kernel " << options.kernel
       << "\ngpu.backward_kernel " << options.backward_kernel << "\ngpu.share_gpu " << options.share_gpu
       << "\ngpu.timeout " << options.timeout.count() << "\nsum_numbers " << how.sum_numbers;
  return text.str();
}

}  // namespace

GpuAttention::GpuAttention(std::shared_ptr<AttentionRanks> ranks, GpuCall call)
    : ranks_(std::move(ranks)), how_(std::move(call)) {}
GpuAttention::GpuAttention(GpuAttention&&) noexcept = default;
GpuAttention& GpuAttention::operator=(GpuAttention&&) noexcept = default;
GpuAttention::~GpuAttention() {
  if (parts_) parts_->observe(how_.observers);
}

void GpuAttention::wait() {
  if (!parts_) return;
  parts_->observe(how_.observers);
  parts_->wait();
}

template <class T>
void GpuAttention::run(GpuStream stream, const Call<T>& call, const auto& use) {
  if (parts_) parts_->observe(how_.observers);
  AgreedCall all = agreed<T>(
      *ranks_, call,
      [&](const Check& check, const SharedAttention& shared) {
        try {
          const GpuCheck<T> on_gpu(check, how_.gpu, parts_.get());
          on_gpu.arrays(call, shared);
          cuda::require_equal_widths(call.arrays.q.shape(), call.arrays.v.shape());
          on_gpu.memory(shared, call.result.has_value());
        } catch (const Error& error) {  // of CUDA, for instance of a kernel of the caller's
          check(false, error.what());
        }
      },
      completed_);
  const GpuOptions& options = how_.gpu;
  const RankGrid& grid = all.shared.grid;
  if (!parts_ || !parts_->serves(options, grid)) {
    if (parts_) parts_->wait();  // an error of an earlier call is not lost
    parts_.reset();
    completed_.clear();
    parts_ = std::make_unique<GpuParts>(*ranks_, options, grid);
    parts_->observe(how_.observers);
    all.first = true;
  }
  auto& tables = parts_->tables(all.text.substr(all.text.find('\n')));
  const CudaDevice<T> device(parts_->engine(options.kernel, grid, tables),
                             parts_->engine(options.backward_kernel, grid, tables));
  ObservedContextParallel<T> attention(device, parts_->links(), all.shared, how_.observers);
  const CollectiveStep collectively = [&](const std::function<void()>& step) {
    if (all.first)
      agree(*ranks_, step);
    else
      step();
  };
  {
    const GpuParts::Between between(*parts_, stream);
    use(attention, collectively);
  }
  constexpr std::size_t most_calls = 256;  // those with a dropout differ in every step
  if (completed_.size() >= most_calls) completed_.clear();
  completed_.insert(std::move(all.text));
}

template <class T>
Call<T> GpuAttention::call_of(const char* name, const AttentionArrays<T>& arrays, const Placements& placement,
                              const Scoring& scoring) const {
  return {name, arrays, placement, scoring, how_.division, text_of(how_)};
}

template <GpuNumber T>
void GpuAttention::forward(GpuStream stream, const AttentionArrays<T>& arrays, const ResultViews<float>& to,
                           const Placements& placement, const Scoring& scoring) {
  Call<T> call = call_of("forward of GPU arrays", arrays, placement, scoring);
  call.to = to;
  run(stream, call, [&](ContextParallel<T>& attention, const CollectiveStep& collectively) {
    copy_results(attention.memory(),
                 attention.forward(arrays.q, arrays.k, arrays.v, call.bias(), collectively), to);
  });
}

template <GpuNumber T>
TermNumbers GpuAttention::backward(GpuStream stream, const AttentionArrays<T>& arrays,
                                   const ResultViews<const float>& result, View<const T> grad_out,
                                   const GradientViews<float>& to, const Placements& placement,
                                   const Scoring& scoring) {
  Call<T> call = call_of("backward of GPU arrays", arrays, placement, scoring);
  call.result = result;
  call.grad_out = grad_out;
  call.gradients_to = to;
  TermNumbers numbers;
  run(stream, call, [&](ContextParallel<T>& attention, const CollectiveStep& collectively) {
    const BackwardInputs<T> inputs = call.backward_inputs();
    auto backward = attention.travelled(inputs, arrays.k, arrays.v, collectively);
    auto held = attention.finish(backward);
    copy_results(attention.memory(), held, to);
    numbers = std::move(held.numbers);
    if (!scoring.sinks.empty()) parts_->wait();  // with the time limit
    numbers.sinks = sink_gradient(inputs, scoring.sinks, parts_->stream());
    if (how_.sum_numbers) all_reduce(ranks_->all(), numbers);
  });
  return numbers;
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                  \
  template void GpuAttention::forward(GpuStream, const AttentionArrays<T>&, const ResultViews<float>&, \
                                      const Placements&, const Scoring&);                              \
  template TermNumbers GpuAttention::backward(                                                         \
      GpuStream, const AttentionArrays<T>&, const ResultViews<const float>&, View<const T>,            \
      const GradientViews<float>&, const Placements&, const Scoring&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(Bf16)
RING_ATTENTION_INSTANTIATE(Fp16)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
