#include "ring_attention/cpu/isa.hpp"

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
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

}  // namespace ring_attention
