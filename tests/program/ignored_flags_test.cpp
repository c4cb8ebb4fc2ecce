// Each option of each command is taken alone, or with the flag that it needs, without which it is an error. (That a flag
// which is taken changes something: tests/cli.)
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "program/command_words.hpp"

namespace ring_attention::test {
namespace {

/// A command under test. At the end every option of it must have been tried.
template <class Options>
class Flags {
 public:
  Flags(Declare<Options> declare, const std::string& base) : declare_(declare), base_(base) {}
  Flags(const Flags&) = delete;
  ~Flags() {
    for (const std::string& flag : flags_of(declare_))
      EXPECT_TRUE(tried_.contains(flag)) << flag << " is not tried";
  }

  /// What the command line always has.
  void base(const std::string& words) { base_ = words; }

  /// Flags, each with a value that is not its default, which need no other.
  void need_nothing(const std::vector<std::string>& flags) {
    for (const std::string& flag : flags) {
      EXPECT_EQ(said(flag), "") << flag;
      tried_.insert(name_of(flag));
    }
  }
  /// A flag that is taken with `needed`, and refused with `without` in its place.
  void pair(const std::string& flag, const std::string& needed, const std::string& without = "") {
    EXPECT_EQ(said(flag + " " + needed), "") << flag;
    const std::string error = said(flag + " " + without);
    EXPECT_NE(error.find(name_of(flag)), std::string::npos)
        << flag << " " << without << " is taken: " << error;
    EXPECT_NE(error.find(name_of(needed)), std::string::npos) << error;
    tried_.insert(name_of(flag));
  }
  /// Other names of flags.
  void old_names(const std::vector<std::string>& flags) { tried_.insert(flags.begin(), flags.end()); }

 private:
  static std::string name_of(const std::string& flag) { return flag.substr(0, flag.find(' ')); }

  [[nodiscard]] std::string said(const std::string& more) const {
    std::istringstream text(base_ + " " + more);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    return error_of(declare_, words);
  }

  Declare<Options> declare_;
  std::string base_;
  std::set<std::string> tried_{"--help", "--version"};
};

/// The narrowest.
std::string an_isa() { return std::string("--isa ") + name_of(available_isas().back()); }

void try_job(auto& flags) {
  flags.old_names({"--np"});
  flags.need_nothing({"--timeout 5", "--expect-ranks 2"});
}

void try_same_bits(auto& flags) {
  flags.need_nothing({"--same-bits"});
  flags.pair("--tile 64", "--same-bits");
}

void try_engine(auto& flags) {
  flags.need_nothing({"--engine readable"});
  flags.pair("--tile 32", "--engine readable");
  flags.pair(an_isa(), "--engine fast", "--engine readable");
}

/// The flags of `run` and `bench` for the partition and the device.
void try_partition_and_device(auto& flags) {
  flags.old_names({"--ring", "--type"});
  flags.need_nothing({"--parallel all-gather", "--device cuda"});
  for (const char* other : {"", "--parallel ulysses", "--parallel auto"})
    flags.pair("--ulysses 2", "--parallel hybrid", other);
  flags.pair("--transport odd-even", "--parallel ring", "--parallel ulysses");
  flags.pair("--transport overlapped", "--parallel hybrid --ulysses 2", "--parallel all-gather");
  flags.pair("--transport staged", "--device cuda");
  flags.pair("--transport odd-even", "--device cpu", "--device cuda");
  for (const char* flag :
       {"--dtype bf16", "--kernel tiled", "--share-gpu", "--backward-kernel tiled --backward"})
    flags.pair(flag, "--device cuda");
  flags.pair("--backward-kernel tiled", "--backward --device cuda", "--device cuda");
  for (const std::string& flag : {std::string("--threads 2"), an_isa(), std::string("--same-bits")})
    flags.pair(flag, "--device cpu", "--device cuda");
}

TEST(IgnoredFlags, OfRun) {
  const std::string random = "--random 1,4,16,8", files = "--q a --k a --v a";
  Flags<RunOptions> flags(declare_run_options, random);
  try_job(flags);
  try_same_bits(flags);
  try_engine(flags);
  try_partition_and_device(flags);
  flags.pair("--threads 2", "--engine fast", "--engine readable");
  flags.need_nothing({"--out a", "--check", "--json", "--progress never", "--trace a", "--scale 2",
                      "--softcap 3", "--causal", "--window 1,1", "--documents a", "--alibi", "--bias a",
                      "--sink a", "--dropout 0.5", "--chunk 4", "--intervals a"});
  for (const char* flag : {"--prefix 4", "--blocks 1:3,5:8"}) {
    flags.pair(flag, "--causal");
    flags.pair(flag, "--window 3,0");
    flags.pair(flag, "--chunk 4");
  }
  for (const char* flag : {"--sink-tokens 4", "--global-tokens 1:3,5:8"}) {
    flags.pair(flag, "--window 3,0", "--causal");
    flags.pair(flag, "--chunk 4", "--causal");
  }
  flags.pair("--dropout-seed 2", "--dropout 0.5");
  flags.pair("--q-offset 2", "--causal");
  flags.old_names({"--block", "--wire"});
  for (const char* flag : {"--placement zigzag", "--kv-dtype bf16"})
    flags.pair(flag, "--parallel all-gather", "--parallel ulysses");
  for (const char* flag : {"--kv-dtype bf16", "--engine fast"})
    flags.pair(flag, "--device cpu", "--device cuda");
  flags.base("");
  for (const char* flag : {"--kv-heads 2", "--value-dim 2", "--seed 2", "--backward"})
    flags.pair(flag, random, files + " --out a");
  flags.base("--out a");
  flags.need_nothing({random});
  flags.pair("--q a", "--k a --v a");
  flags.pair("--k a", "--q a --v a");
  flags.pair("--v a", "--q a --k a");
  flags.pair("--dout a", "--q a --k a --v a");
}

TEST(IgnoredFlags, OfDecode) {
  const std::string random = "--random 1,4,16,8", files = "--q a --k a --v a";
  Flags<DecodeOptions> flags(declare_decode_options, random);
  try_job(flags);
  try_same_bits(flags);
  try_engine(flags);
  flags.need_nothing({"--threads 2 --engine readable", "--prompt 3", "--out a", "--check", "--json",
                      "--trace a", "--scale 2", "--softcap 3", "--window 2,0", "--alibi", "--sink a",
                      "--placement zigzag", "--transport odd-even"});
  flags.base("--out a");
  for (const char* flag : {"--kv-heads 2", "--value-dim 2", "--seed 2"}) flags.pair(flag, random, files);
  flags.need_nothing({random});
  flags.pair("--q a", "--k a --v a");
  flags.pair("--k a", "--q a --v a");
  flags.pair("--v a", "--q a --k a");
}

TEST(IgnoredFlags, OfBench) {
  Flags<BenchOptions> flags(declare_bench_options, "");
  try_job(flags);
  try_same_bits(flags);
  try_partition_and_device(flags);
  flags.need_nothing({"--seq 16", "--batch 2", "--heads 4", "--kv-heads 2", "--dim 8", "--causal",
                      "--backward", "--repetitions 2", "--json", "--trace a"});
  flags.pair("--dtype float64", "--device cpu", "--device cuda");
  flags.pair("--placement zigzag", "--parallel ring", "--parallel ulysses");
  Flags<BenchDecodeOptions> decode(declare_bench_decode_options, "");
  try_job(decode);
  decode.need_nothing({"--seq 16", "--batch 2", "--heads 16", "--kv-heads 2", "--dim 8", "--repetitions 2",
                       "--json", "--threads 2", an_isa()});
}

TEST(IgnoredFlags, OfTrain) {
  Flags<TrainOptions> flags(declare_train_options, "");
  try_job(flags);
  try_same_bits(flags);
  flags.need_nothing(
      {"--task bandit",  "--seq 64",    "--steps 2",    "--rate 1",    "--seed 2", "--evaluation-tokens 9",
       "--tensor 2",     "--ulysses 2", "--ring 2",     "--data 2",    "--fsdp",   "--layers 2",
       "--width 8",      "--heads 4",   "--kv-heads 1", "--dim 8",     "--ffn 9",  "--dtype float64",
       "--checkpoint a", "--trace a",   "--json",       "--threads 2", an_isa()});
  flags.pair("--checkpoint-every 2", "--checkpoint a");
  flags.old_names({"--hidden", "--ranks-tensor", "--ranks-ulysses", "--ranks-ring", "--ranks-data"});
}

TEST(IgnoredFlags, OfPlan) {
  Flags<PlanOptions> flags(declare_plan_options, "");
  flags.need_nothing(
      {"--model llama-7b",   "--layers 8",       "--hidden 2048",   "--heads 16",     "--kv-heads 4",
       "--ffn 2048",         "--vocab 9",        "--phase prefill", "--context 4096", "--batch 2",
       "--keep-activations", "--machine 8xa100", "--ranks 16",      "--flops 100",    "--memory 90",
       "--link 9",           "--nic 9",          "--node 4",        "--nics 4",       "--tensor 2",
       "--ulysses 2",        "--ring 2",         "--data 1",        "--pipeline 2",   "--json"});
  const std::string config = testing::TempDir() + "ignored_flags_config.json";
  std::ofstream(config) << R"({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                              "intermediate_size": 9, "vocab_size": 9})";
  flags.need_nothing({"--config " + config});
  for (const char* flag : {"--chunks 2", "--micro-batch 2 --batch 8"}) {
    flags.pair(flag, "--pipeline 2");
    flags.pair(flag, "--pipeline 2", "--pipeline 1");
  }
  for (const char* phase : {"--phase prefill", "--phase decode"})
    flags.pair("--keep-activations", "--phase training", phase);
}

TEST(IgnoredFlags, OfExample) {
  Flags<ExampleOptions>(declare_example_options, "")
      .need_nothing({"--text a", "--out a", "--tokens 9", "--kv-heads 1", "--group 1", "--dim 8", "--seed 2",
                     "--bias", "--sink"});
}

}  // namespace
}  // namespace ring_attention::test
