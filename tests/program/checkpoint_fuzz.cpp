// Any bytes as checkpoint.json are the curve of a training, or refused with one line.
//
// The seeds in checkpoint.seeds come from libFuzzer, as io/npy_header_fuzz.cpp says; this file with
// src/program/train/checkpoint_description.cpp, and the libraries of the program.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "program/train/checkpoint_description.hpp"
#include "program/train/report.hpp"

namespace ring_attention::test {
namespace {

/// A small model of its default task.
struct OneTraining {
  OneTraining() {
    options.layers = 1;
    options.width = options.dim = 2;
    options.heads = options.hidden = 1;
    options.seq = 64;
    options.steps = 2;
    text = training_json(options).dump();
  }
  TrainOptions options;
  std::string text;
};

}  // namespace
}  // namespace ring_attention::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ring_attention;
  static const test::OneTraining training;
  static const WholeLayout whole(training.options.shape());
  try {
    const Curve curve =
        described_curve("run/step_2", {reinterpret_cast<const char*>(data), size}, training.text, whole);
    for (const CurvePoint& point : curve)
      if (point.step < 0 || point.length < 1) std::abort();
  } catch (const InputError& error) {
    const std::string_view line = error.what();
    if (!line.starts_with("run/step_2") || line.find('\n') != std::string_view::npos || line.size() > 400)
      std::abort();
  }
  return 0;
}

#ifndef RING_ATTENTION_LIBFUZZER
#include "support/seeds.hpp"

TEST(CheckpointFuzz, TheSeedsOfLibFuzzer) {
  ring_attention::test::replay_seeds("program/checkpoint.seeds", LLVMFuzzerTestOneInput);
}
#endif
