// The part of Attention that takes arrays of a GPU. All work is on a stream of its own, between two events of the caller's
// stream: what it keeps (memory, tables, communicators) is then used in one order, whatever streams the caller has.

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>

#include "ring_attention/attention_state.hpp"
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

class GpuParts final : public AttentionState::Gpu {
 public:
  /// Collective. Uses the current GPU. \param state  outlives this object
  GpuParts(AttentionState& state, const RankGrid& grid)
      : made_for_(state.options.gpu),
        ulysses_(grid.ulysses.size),
        nccl_(uses_nccl(state.options.gpu)),
        alive_([&state] { tell(state.options.observers, &Observer::beats); }),
        links_(state.ranks->links(grid), compute_.handle(),
               {nccl_, state.options.gpu.timeout, alive_, state.options.gpu.share_gpu, true}) {}
  GpuParts(const GpuParts&) = delete;
  GpuParts& operator=(const GpuParts&) = delete;
  ~GpuParts() override {
    try {
      if (std::uncaught_exceptions() == exceptions_) wait();
    } catch (const std::exception&) {  // NOLINT: the caller did not ask
    }
  }

  void wait() override {
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

/// What can be said before any message of a GPU.
template <class T>
class GpuCheck {
 public:
  GpuCheck(const Check& check, AttentionState& state)
      : check_(check), gpu_(static_cast<GpuParts*>(state.gpu.get())) {
    const std::string why = cuda::why_no_device();
    check(why.empty(), why + ": give arrays of the host");
    check(state.options.same_bits == 0, "options.same_bits does not work on a GPU: give arrays of the host");
#ifndef RING_ATTENTION_HAS_NCCL
    check(!uses_nccl(state.options.gpu),
          "this library was built without NCCL: use GpuOptions::Transport::staged");
#endif
    device_ = cuda::current_device();
    check(gpu_ == nullptr || gpu_->device() == device_,
          "GPU " + std::to_string(device_) + " is current, and this Attention began on GPU " +
              std::to_string(gpu_ == nullptr ? 0 : gpu_->device()));
    if (gpu_ != nullptr) gpu_->poll();
  }

  template <class E>
  void array(const char* name, View<E> array) const {
    if (array.size() == 0) return;
    const int device = cuda::device_of(array.data());
    check_(device >= 0, std::string(name) + " is not in the memory of a GPU");
    check_(device == device_,
           std::string(name) + " is in the memory of GPU " + std::to_string(device) + ", and GPU " +
               std::to_string(device_) +
               " is current: select the GPU of a rank before its first call (cudaSetDevice)");
  }
  void arrays(const Call<T>& call) const {
    array("q", call.q);
    array("k", call.k);
    array("v", call.v);
    each_term(
        [this](const auto& of_term, const char* name) {
          if (of_term) this->array(name, *of_term);
        },
        call.terms, term_names);
    if (call.to) {
      array("out", call.to->out);
      array("lse", call.to->lse);
    }
    if (!call.result) return;
    array("result.out", call.result->out);
    array("result.lse", call.result->lse);
    array("grad_out", call.grad_out);
    const GradientViews<float>& to = *call.gradients_to;
    array("dq", to.q);
    array("dk", to.k);
    array("dv", to.v);
    each_term([this](const auto& of_term,
                     const char* name) { this->array(("d" + std::string(name)).c_str(), of_term); },
              to.terms(), term_names);
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

/// What a call does on this rank, once the arguments of all ranks are checked: use(attention, collectively, gpu).
template <class T>
void with_gpu(AttentionState& state, GpuStream stream, const Call<T>& call, const auto& use) {
  bool first = state.agreed<T>(call, [&](const Check& check) {
    try {
      const GpuCheck<T> on_gpu(check, state);
      on_gpu.arrays(call);
      cuda::require_equal_widths(call.q.shape(), call.v.shape());
      on_gpu.memory(state.shared_by(call), call.result.has_value());
    } catch (const Error& error) {  // of CUDA, for instance of a kernel of the caller's
      check(false, error.what());
    }
  });
  const SharedAttention shared = state.shared_by(call);
  const GpuOptions& options = state.options.gpu;
  if (!state.gpu || !static_cast<GpuParts&>(*state.gpu).serves(options, shared.grid)) {
    if (state.gpu) state.gpu->wait();  // an error of an earlier call is not lost
    state.gpu.reset();
    state.completed_calls.clear();
    state.gpu = std::make_unique<GpuParts>(state, shared.grid);
    first = true;
  }
  auto& gpu = static_cast<GpuParts&>(*state.gpu);
  const std::string words = shared_arguments(call), key = words.substr(words.find('\n'));
  auto& tables = gpu.tables(key);
  const CudaDevice<T> device(gpu.engine(options.kernel, shared.grid, tables),
                             gpu.engine(options.backward_kernel, shared.grid, tables));
  ObservedContextParallel<T> attention(device, gpu.links(), shared, state.options.observers);
  const CollectiveStep collectively = [&](const std::function<void()>& step) {
    if (first)
      agree(*state.ranks, step);
    else
      step();
  };
  {
    const GpuParts::Between between(gpu, stream);
    use(attention, collectively, gpu);
  }
  state.completed(call);
}

}  // namespace

template <GpuNumber T>
void Attention::forward(GpuStream stream, const AttentionArrays<T>& arrays, const ResultViews<float>& to,
                        const Placements& placement, const Scoring& scoring) {
  Call<T> call = call_of("forward of GPU arrays", *state_, arrays, placement, scoring);
  call.to = to;
  with_gpu<T>(*state_, stream, call,
              [&](ContextParallel<T>& attention, const CollectiveStep& collectively, GpuParts&) {
                attention.forward(call.q, call.k, call.v, call.term_rows(), collectively, to);
              });
}

template <GpuNumber T>
TermNumbers Attention::backward(GpuStream stream, const AttentionArrays<T>& arrays,
                                const ResultViews<const float>& result, View<const T> grad_out,
                                const GradientViews<float>& to, const Placements& placement,
                                const Scoring& scoring) {
  Call<T> call = call_of("backward of GPU arrays", *state_, arrays, placement, scoring);
  call.result = result;
  call.grad_out = grad_out;
  call.gradients_to = to;
  TermNumbers numbers;
  with_gpu<T>(*state_, stream, call,
              [&](ContextParallel<T>& attention, const CollectiveStep& collectively, GpuParts& gpu) {
                const BackwardInputs<T> inputs = call.backward_inputs();
                numbers = attention.backward(inputs, call.k, call.v, collectively, to);
                if (!scoring.sinks.empty()) gpu.wait();  // with the time limit
                numbers.sinks = sink_gradient(inputs, scoring.sinks, gpu.stream());
                if (state_->options.sum_numbers) all_reduce(state_->ranks->all(), numbers);
              });
  return numbers;
}

template void Attention::forward(GpuStream, const AttentionArrays<float>&, const ResultViews<float>&,
                                 const Placements&, const Scoring&);
template TermNumbers Attention::backward(GpuStream, const AttentionArrays<float>&,
                                         const ResultViews<const float>&, View<const float>,
                                         const GradientViews<float>&, const Placements&, const Scoring&);
template void Attention::forward(GpuStream, const AttentionArrays<Bf16>&, const ResultViews<float>&,
                                 const Placements&, const Scoring&);
template TermNumbers Attention::backward(GpuStream, const AttentionArrays<Bf16>&,
                                         const ResultViews<const float>&, View<const Bf16>,
                                         const GradientViews<float>&, const Placements&, const Scoring&);
template void Attention::forward(GpuStream, const AttentionArrays<Fp16>&, const ResultViews<float>&,
                                 const Placements&, const Scoring&);
template TermNumbers Attention::backward(GpuStream, const AttentionArrays<Fp16>&,
                                         const ResultViews<const float>&, View<const Fp16>,
                                         const GradientViews<float>&, const Placements&, const Scoring&);

}  // namespace ring_attention
