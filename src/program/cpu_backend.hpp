/// \file
/// `CpuBackend`: the cores of this machine, and MPI.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cli/table.hpp"
#include "program/backend.hpp"
#include "program/host_memory.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/mpi_links.hpp"

namespace ring_attention {

/// The instruction set and the threads of a rank that the flags ask for. Collective.
[[nodiscard]] inline CpuOptions cpu_options(const Communicator& comm, const CpuFlags& options) {
  CpuOptions cpu;
  if (options.isa != "auto") cpu.isa = isa_named(options.isa);
  const int shared_out = usable_cores() / ranks_on_this_host(comm);
  cpu.threads = std::max(1, options.threads > 0 ? static_cast<int>(options.threads) : shared_out);
  return cpu;
}

[[nodiscard]] inline bool is_fast(const DeviceOptions& options) { return options.engine != "readable"; }

/// "float32", "float64".
template <class T>
[[nodiscard]] const char* dtype_name() {
  return sizeof(T) == sizeof(double) ? "float64" : "float32";
}

/// The cores of this machine in the words of a report. \param cpu  cpu_options()
template <class T>
[[nodiscard]] BackendDescription describe_cpu(const DeviceOptions& options, const CpuOptions& cpu) {
  return {.engine = is_fast(options) ? "fast" : "readable",
          .isa = is_fast(options) ? name_of(cpu.isa) : "",
          .wire = std::is_same_v<T, Bf16> ? "bf16" : dtype_name<T>(),
          .transport = options.transport == "odd-even" ? "odd-even" : "overlapped",
          .warning = {},
          .threads = cpu.threads,
          .same_bits = cpu.same_bits};
}

/// The instruction set and the threads that the fast engines take, and the tile; the readable ones take the tile alone.
[[nodiscard]] inline CpuOptions engine_options(const Communicator& comm, const DeviceOptions& options) {
  CpuOptions cpu = is_fast(options) ? cpu_options(comm, options) : CpuOptions{};
  if (options.same_bits) cpu.same_bits = options.tile;
  return cpu;
}
template <class Input, class T = Input>
[[nodiscard]] CpuDevice<Input, T> cpu_device(const DeviceOptions& options, const CpuOptions& cpu) {
  return CpuDevice<Input, T>(cpu, is_fast(options) ? 0 : options.block);
}
[[nodiscard]] inline TransportKind transport_kind(const DeviceOptions& options) {
  return options.transport == "odd-even" ? TransportKind::odd_even : TransportKind::overlapped;
}

/// The cores of this machine, and MPI.
template <class Input, class T = Input>
class CpuBackend : public Backend<Input, T> {
 public:
  explicit CpuBackend(const BackendContext& context)
      : context_(context),
        cpu_(engine_options(context.comm, context.options)),
        device_(cpu_device<Input, T>(context.options, cpu_)),
        observer_(context.activity),
        mpi_(context.comm, grid().ulysses, grid().ring, transport_kind(context.options)),
        links_(mpi_, observer_) {}

  [[nodiscard]] const Device<Input, T>& device() const override { return device_; }
  [[nodiscard]] Links& links() override { return links_; }
  [[nodiscard]] BackendDescription description() const override {
    return describe_cpu<T>(context_.options, cpu_);
  }
  [[nodiscard]] double input_roundoff() const override { return is_narrow ? Bf16::unit : 0; }

  void require_memory() const override {
    const Workload& work = context_.work;
    const Index terms = work.term_values() * value_bytes + work.check_bytes;
    const Index exact = cpu_.same_bits > 0 ? exact_bytes(work.shared, work.gradients) : 0;
    const Index widened = is_narrow ? 2 * computed_keys(work.shared).size() * value_bytes : 0;
    require_host_memory(context_.comm,
                        context_bytes(work.shared, work.gradients, {value_bytes, sizeof(T), value_bytes}) +
                            exact + widened + terms + work.besides * value_bytes,
                        work.of_which(terms));
  }

 private:
  static constexpr bool is_narrow = !std::is_same_v<T, Input>;  // do K,V travel in another type?
  static constexpr Index value_bytes = sizeof(Input);

  [[nodiscard]] const RankGrid& grid() const { return context_.work.shared.grid; }

  BackendContext context_;
  CpuOptions cpu_;
  CpuDevice<Input, T> device_;
  ActivityObserver observer_;
  MpiLinks mpi_;
  ObservedLinks links_;
};

}  // namespace ring_attention
