// Runs the breakable kernel once under compute-sanitizer, without the barrier on the source line that the argument
// names. The problem has several tiles of queries and of keys and a causal mask.

#include <cstdio>
#include <cstdlib>

#include "ring_attention/core/random.hpp"
#include "ring_attention/cuda/choice.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/cuda/task.hpp"

namespace ring_attention::cuda {

extern const ForwardKernel breakable_kernel;
void leave_out(int line);

template <class T>
void attend() {
  const Shape q_shape{1, 2, 200, 64}, kv_shape{1, 1, 250, 64};
  const Stream stream;
  const StreamHandle handle = stream.handle();
  const auto random = [&](const Shape& shape, std::uint64_t number) {
    Tensor<float> array(shape);
    fill_random(array.view(), {.stream = number});
    return uploaded<T>(array, handle);
  };
  const auto q = random(q_shape, 0), k = random(kv_shape, 1), v = random(kv_shape, 2);
  DeviceTensor<float> o(q_shape), m(q_shape.per_row()), l(q_shape.per_row());
  const Scoring scoring{0.125, Mask::causal(50)};
  const MaskOnDevice mask(scoring, whole(q_shape.seq), handle);
  for_each_launch<ForwardTask>(
      {task_of(q_shape, q.data(), scoring, mask), true, o.data(), m.data(), l.data()}, 1, kv_shape, k.data(),
      v.data(), {{130, 1, 120}, {0, 1, 130}}, [&](const ForwardTask& task, int) {
        breakable_kernel.launch(task, type_of<T>, traits_of(current_device()), handle);
      });
  stream.synchronize();
}

}  // namespace ring_attention::cuda

int main(int, char** arguments) {
  using namespace ring_attention;
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  cuda::leave_out(arguments[1] == nullptr ? 0 : std::atoi(arguments[1]));
  if (cuda::breakable_kernel.takes(cuda::traits_of(cuda::current_device()), cuda::Type::fp32, 64))
    cuda::attend<float>();
  else
    cuda::attend<Bf16>();
}
