// One device's forward and backward on arrays that another program gives and times beside its own (pytorch.py).
//
//     benchmark_arrays DIR [ISA]
//
// reads q.npy, k.npy, v.npy, dout.npy in DIR, of float32 or float64. Then, for each line
// `<forward|both> <full|causal> <threads>` on standard input, runs once in that type and prints the seconds; `write`
// writes out.npy, dq.npy, dk.npy, dv.npy of the latest run.

#include <chrono>
#include <cmath>
#include <iostream>
#include <string>

#include "io/npy.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/backward.hpp"

namespace {

using namespace ring_attention;

template <class T>
void serve(const std::string& folder, Isa isa) {
  const auto array = [&](const char* name) { return folder + "/" + name + ".npy"; };
  const auto q = read_npy<T>(array("q")), k = read_npy<T>(array("k")), v = read_npy<T>(array("v")),
             grad_out = read_npy<T>(array("dout"));
  const TokenRanges all = whole(q.shape().seq);
  AttentionResult<T> attended;
  Gradients<T> gradients;
  for (std::string what, mask; std::cin >> what && what != "write";) {
    int threads = 1;
    std::cin >> mask >> threads;
    Scoring scoring{1 / std::sqrt(static_cast<double>(q.shape().dim))};
    if (mask == "causal") scoring.mask = Mask::causal();

    const auto begin = std::chrono::steady_clock::now();
    CpuEngine<T> forward(scoring, {.threads = threads, .isa = isa});
    forward.begin(q, all);
    forward.accumulate({k, v, all});
    attended = forward.finish();
    if (what == "both") {
      gradients = {{}, Tensor<T>(k.shape()), Tensor<T>(v.shape())};
      CpuBackward<T> backward(scoring, {.threads = threads, .isa = isa});
      backward.begin({q, attended.out, attended.lse, grad_out}, all);
      backward.accumulate({k, v, all}, {gradients.k, gradients.v});
      gradients.q = backward.finish();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << seconds.count() << '\n' << std::flush;
  }
  write_npy<T>(array("out"), attended.out);
  write_npy<T>(array("dq"), gradients.q);
  write_npy<T>(array("dk"), gradients.k);
  write_npy<T>(array("dv"), gradients.v);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: benchmark_arrays DIR [ISA]\n";
    return 2;
  }
  try {
    const std::string folder = argv[1];
    const Isa isa = argc == 3 ? isa_named(argv[2]) : best_isa();
    if (read_npy_header(folder + "/q.npy").dtype == Dtype::float64)
      serve<double>(folder, isa);
    else
      serve<float>(folder, isa);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
