/// \file
/// `cpu_backend`: the cores of this machine, and MPI.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cli/table.hpp"
#include "program/backend.hpp"
#include "program/host_memory.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/mpi/host.hpp"
#include "ring_attention/parallel/cpu_devices.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

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
  cpu.same_bits = options.tile_of_same_bits();
  return cpu;
}
/// Collective. \param grid  of this rank
[[nodiscard]] inline std::unique_ptr<Links> mpi_links(const Communicator& comm, const DeviceOptions& options,
                                                      const RankGrid& grid) {
  if (options.transport == "odd-even")
    return std::make_unique<MpiLinksOver<OddEvenTransport>>(comm, grid.ulysses, grid.ring);
  return std::make_unique<MpiLinks>(comm, grid.ulysses, grid.ring);
}

/// \throws AgreedError when one rank cannot have the memory for its shards of `work`. Collective.
template <class Input, class T>
void require_memory_of(const Communicator& comm, const Workload& work, const CpuOptions& cpu) {
  constexpr Index value_bytes = sizeof(Input);
  const Index terms = work.bias_values() * value_bytes + work.check_bytes;
  const Index exact = cpu.same_bits > 0 ? exact_bytes(work.shared, work.gradients) : 0;
  const Index widened = std::is_same_v<T, Input> ? 0 : computed_keys(work.shared).elements() * value_bytes;
  require_host_memory(comm,
                      context_bytes(work.shared, work.gradients, {value_bytes, sizeof(T), value_bytes}) +
                          exact + widened + terms + work.extra_elements * value_bytes,
                      work.of_which(terms));
}

/// The cores of this machine, and MPI. Collective.
template <class Input, class T = Input>
[[nodiscard]] Backend<Input, T> cpu_backend(const BackendContext& context) {
  const auto& [comm, options] = std::tie(context.comm, context.options);
  const CpuOptions cpu = engine_options(comm, options);
  return {.device = make_cpu_device<Input, T>(cpu, is_fast(options) ? 0 : options.tile_of_readable()),
          .links = mpi_links(comm, options, context.work.shared.grid),
          .observers = context.observers(),
          .description = describe_cpu<T>(options, cpu),
          .input_roundoff = std::is_same_v<T, Input> ? 0 : Bf16::unit,
          .require_memory = [context, cpu] { require_memory_of<Input, T>(context.comm, context.work, cpu); }};
}

}  // namespace ring_attention
