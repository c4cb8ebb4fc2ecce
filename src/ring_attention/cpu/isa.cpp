#include "ring_attention/cpu/isa.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace cpu {

#define RING_ATTENTION_DECLARE(isa)     \
  namespace isa {                       \
  extern const ForwardKernel forward;   \
  extern const BackwardKernel backward; \
  }
#if defined(__x86_64__)
RING_ATTENTION_DECLARE(x86_64)
RING_ATTENTION_DECLARE(avx2)
RING_ATTENTION_DECLARE(avx512)
#elif defined(__aarch64__)
RING_ATTENTION_DECLARE(neon)
#else
RING_ATTENTION_DECLARE(generic)
#endif

}  // namespace cpu

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> available = [] {
#if defined(__x86_64__)
    std::vector<Isa> isas{Isa::x86_64};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(Isa::avx2);
    if (isas.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      isas.push_back(Isa::avx512);
    return isas;
#elif defined(__aarch64__)
    return std::vector<Isa>{Isa::neon};
#else
    return std::vector<Isa>{Isa::generic};
#endif
  }();
  return available;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::x86_64: return "x86-64";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::neon: return "neon";
    case Isa::generic: break;
  }
  return "generic";
}

Isa isa_named(std::string_view name) {
  std::string names;
  for (const Isa isa : available_isas()) {
    if (name == name_of(isa)) return isa;
    names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw Error("no instruction set \"" + std::string(name) + "\" on this machine, which has " + names);
}

const cpu::Kernels& kernels(Isa isa) {
  require(std::ranges::count(available_isas(), isa) == 1, "kernels: this machine lacks the instruction set");
#if defined(__x86_64__)
  static const cpu::Kernels x86_64{cpu::x86_64::forward, cpu::x86_64::backward};
  static const cpu::Kernels avx2{cpu::avx2::forward, cpu::avx2::backward};
  static const cpu::Kernels avx512{cpu::avx512::forward, cpu::avx512::backward};
  return isa == Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : x86_64;
#elif defined(__aarch64__)
  static const cpu::Kernels neon{cpu::neon::forward, cpu::neon::backward};
  return neon;
#else
  static const cpu::Kernels generic{cpu::generic::forward, cpu::generic::backward};
  return generic;
#endif
}

}  // namespace ring_attention
