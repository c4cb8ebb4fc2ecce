// Lesson 11: tensor cores. The kernels are files of the library, src/ring_attention/cuda/kernels/. This program checks
// and times each kernel that the GPU supports, and compares its speed with the previous kernel and with the peak of the
// GPU.
#include "backward_runs.hpp"
#include "chip.hpp"
#include "common/gpu.hpp"

using namespace ring_attention;

using tensor_cores::Mistake;

struct Sizes {
  Index check_queries = 300, check_keys = 420;  // ragged: not multiples of any tile
  Index longest = 8192, heads = 16, dim = 128, calls = 9;
};

/// Checks each kernel on ragged problems, one for each mask, with the keys in two pieces.
template <class T>
void check_all(Lesson& lesson, const Sizes& sizes, Mistake mistake, cuda::StreamHandle stream) {
  const Shape q{1, 4, sizes.check_queries, sizes.dim}, kv{1, 2, sizes.check_keys, sizes.dim};
  const Index ahead = kv.seq - q.seq;  // query i has the position of key i + ahead
  for (const auto& [name, mask] : {std::pair{"full", Mask{}}, std::pair{"causal", Mask::causal(ahead)},
                                   std::pair{"window", Mask{.left = 70, .right = 0, .offset = ahead}}}) {
    const RandomProblem problem{q, kv, {default_scale(sizes.dim), mask}, lesson.seed()};
    const tensor_cores::Checker<T> checker(problem, stream);
    for (const cuda::ForwardKernel& kernel : cuda::forward_kernels())
      if (tensor_cores::takes<T>(kernel, sizes.dim))
        lesson.check(format("kernel %d, %s, %s, %s agrees with the dense reference in double", kernel.number,
                            kernel.name, cuda::name_of(cuda::type_of<T>), name),
                     checker.run(kernel, mistake));
  }
}

/// Checks the kernels of the backward on one ragged problem, causal.
template <class T>
void check_backward(Lesson& lesson, const Sizes& sizes, cuda::StreamHandle stream) {
  const Shape q{1, 4, sizes.check_queries, sizes.dim}, kv{1, 2, sizes.check_keys, sizes.dim};
  const tensor_cores::BackwardChecker<T> checker(
      {q, kv, {default_scale(sizes.dim), Mask::causal(kv.seq - q.seq)}, lesson.seed()}, stream);
  for (const cuda::BackwardKernel& kernel : cuda::backward_kernels())
    if (tensor_cores::takes<T>(kernel, sizes.dim))
      lesson.check(format("backward, %s, %s, causal: dQ, dK and dV agree", kernel.name,
                          cuda::name_of(cuda::type_of<T>)),
                   checker.run(kernel));
}

/// One table per mask: a row per kernel, a column per length.
void show_forward(Lesson& lesson, const Sizes& sizes, const std::vector<tensor_cores::Inputs>& inputs,
                  bool causal, cuda::StreamHandle stream) {
  const double chip_flops = tensor_cores::chip().tensor_flops;
  std::vector<std::string> head{"number", "kernel", "type"};
  for (const auto& input : inputs) head.push_back("S = " + std::to_string(input.shape.seq));
  head.insert(head.end(), {"of the previous", "of the peak"});
  Table table(head);
  double previous = 0, flops = 0;  // at the longest length
  for (const auto& contender : tensor_cores::contenders(cuda::forward_kernels(), sizes.dim)) {
    std::vector<std::string> row{std::to_string(contender.kernel->number), contender.kernel->name,
                                 cuda::name_of(contender.type)};
    for (const auto& input : inputs) {
      flops = tensor_cores::flops(contender, input, causal, sizes.calls, stream);
      row.push_back(flops > 0 ? format("%.1f", flops / 1e12) : "no memory");
    }
    row.push_back(previous > 0 ? format("%.2f", flops / previous) : "");
    row.push_back(chip_flops > 0 ? format("%.0f %%", 100 * flops / chip_flops) : "");
    table.row(row);
    previous = flops;
  }
  lesson.print(causal ? "causal" : "full", table);
}

void say_kernels(const Lesson& lesson, const Sizes& sizes) {
  for (const auto& contender : tensor_cores::contenders(cuda::forward_kernels(), sizes.dim))
    lesson.say(format("  kernel %d, %s: %s", contender.kernel->number, contender.kernel->name,
                      contender.kernel->computes));
}

void show_times(Lesson& lesson, const Sizes& sizes, cuda::StreamHandle stream) {
  lesson.heading("The limits of this GPU");
  tensor_cores::show_roofline(lesson, sizes.dim);
  std::vector<tensor_cores::Inputs> inputs;
  for (const Index part : {4, 2, 1})
    inputs.emplace_back(Shape{1, sizes.heads, std::max<Index>(1, sizes.longest / part), sizes.dim});
  lesson.heading("The forward: TFLOP/s, full");
  show_forward(lesson, sizes, inputs, false, stream);
  lesson.heading("The forward: TFLOP/s, causal; masked pairs are not counted");
  show_forward(lesson, sizes, inputs, true, stream);
  lesson.heading("The backward: TFLOP/s, 10 D operations per pair");
  tensor_cores::show_backward(lesson, inputs.back(), sizes.calls, stream);
}

int tensor_cores_lesson(int argc, char** argv) {
  Lesson lesson("11", "tensor_cores",
                "The same attention in eight kernels: from one thread per entry to tensor cores with "
                "asynchronous copies.");
  Sizes sizes;
  if (gpu::emulated())
    sizes = {.check_queries = 70, .check_keys = 100, .longest = 0, .heads = 1, .dim = 64, .calls = 1};
  lesson.options().option("--longest", sizes.longest,
                          "The longest of three lengths S that are timed; 0: none", {0, 1 << 17});
  lesson.options().option("--heads", sizes.heads, "Heads of the problems that are timed", {1, 1024});
  lesson.options().option("--dim", sizes.dim, "Head dim D", {1, 256});
  lesson.options().option("--calls", sizes.calls, "Calls of each kernel that is timed", {1, 100});
  lesson.options().option("--check-queries", sizes.check_queries, "Queries of the checks", {1, 4096});
  lesson.options().option("--check-keys", sizes.check_keys, "Keys of the checks", {1, 4096});
  lesson.offer_mutants({{"mask-offset", "the mask of the next query: each query sees one key too many"},
                        {"forgotten-piece", "the second piece of keys starts from an empty state"}});
  lesson.needs_gpu(cuda::why_no_device());
  if (!lesson.parse(argc, argv)) return 0;
  require(sizes.check_keys >= sizes.check_queries, "--check-keys must not be less than --check-queries");
  const Mistake mistake = lesson.mutant("mask-offset")       ? Mistake::mask_offset
                          : lesson.mutant("forgotten-piece") ? Mistake::forgotten_piece
                                                             : Mistake::none;
  const cuda::Stream stream;
  gpu::describe_device(lesson);

  lesson.heading("The kernels");
  say_kernels(lesson, sizes);
  lesson.heading("The agreement: ragged, grouped heads, keys in two pieces");
  check_all<float>(lesson, sizes, mistake, stream.handle());
  check_all<Bf16>(lesson, sizes, mistake, stream.handle());
  check_all<Fp16>(lesson, sizes, mistake, stream.handle());
  check_backward<float>(lesson, sizes, stream.handle());
  check_backward<Bf16>(lesson, sizes, stream.handle());
  check_backward<Fp16>(lesson, sizes, stream.handle());
  if (sizes.longest > 0) show_times(lesson, sizes, stream.handle());
  return lesson.finish("exact attention; only the speed differs");
}

int main(int argc, char** argv) {
  return serial_main([&] { return tensor_cores_lesson(argc, argv); });
}
