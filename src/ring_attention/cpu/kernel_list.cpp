#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {
namespace cpu {

#define RING_ATTENTION_DECLARE(isa)                                                               \
  namespace isa##_float {                                                                         \
    extern const ForwardKernel<float> forward, forward_1, forward_2;                              \
    extern const BackwardKernel<float> backward;                                                  \
    extern const ForwardKernel<float> exact_forward, exact_forward_1, exact_forward_2;            \
    extern const BackwardKernel<float> exact_backward;                                            \
    extern const AddProduct<float> add_product;                                                   \
    extern const AddExactTerms add_exact_terms;                                                   \
  }                                                                                               \
  namespace isa##_double {                                                                        \
    extern const ForwardKernel<double> forward, forward_1, forward_2;                             \
    extern const BackwardKernel<double> backward;                                                 \
    extern const AddProduct<double> add_product;                                                  \
  }                                                                                               \
  template <class T>                                                                              \
  const Kernels<T>& isa() {                                                                       \
    static const Kernels<T> kernels = [] {                                                        \
      Kernels<T> of{};                                                                            \
      if constexpr (sizeof(T) == sizeof(float)) {                                                 \
        of.forward = {isa##_float::forward, {isa##_float::forward_1, isa##_float::forward_2}};    \
        of.backward = isa##_float::backward;                                                      \
        of.add_product = isa##_float::add_product;                                                \
      } else {                                                                                    \
        of.forward = {isa##_double::forward, {isa##_double::forward_1, isa##_double::forward_2}}; \
        of.backward = isa##_double::backward;                                                     \
        of.add_product = isa##_double::add_product;                                               \
      }                                                                                           \
      of.exact_forward = {isa##_float::exact_forward,                                             \
                          {isa##_float::exact_forward_1, isa##_float::exact_forward_2}};          \
      of.exact_backward = isa##_float::exact_backward;                                            \
      of.add_exact_terms = isa##_float::add_exact_terms;                                          \
      return of;                                                                                  \
    }();                                                                                          \
    return kernels;                                                                               \
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

template <class T>
const cpu::Kernels<T>& kernels(Isa isa) {
  require(std::ranges::count(available_isas(), isa) == 1, "kernels: this machine lacks the instruction set");
#if defined(__x86_64__)
  return isa == Isa::avx512 ? cpu::avx512<T>() : isa == Isa::avx2 ? cpu::avx2<T>() : cpu::x86_64<T>();
#elif defined(__aarch64__)
  return cpu::neon<T>();
#else
  return cpu::generic<T>();
#endif
}
template const cpu::Kernels<float>& kernels(Isa);
template const cpu::Kernels<double>& kernels(Isa);

}  // namespace ring_attention
