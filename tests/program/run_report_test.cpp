// The reports of a run and of a training, as text and as JSON.
#include "program/run/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program/train/report.hpp"

namespace ring_attention::test {
namespace {

/// Two ranks of which the second has no token, so nothing to check.
RunReport of_two_ranks() {
  RunReport report;
  report.q = {1, 4, 1, 16};
  report.kv = {1, 2, 1, 16};
  report.dtype = "float32";
  report.backend.engine = "fast";
  report.backend.isa = "avx2";
  report.backend.wire = "bf16";
  report.scale = 0.25;
  report.read_seconds = 0.5;
  report.forward_seconds = 2;
  report.ranks.resize(2);
  report.ranks[0].tokens = 1;
  report.ranks[0].messages_sent = 1;
  report.ranks[0].bytes_sent = 256;
  report.ranks[0].forward_exposed_seconds = 0.125;
  report.ranks[0].tensor_bytes = 2048;
  report.ranks[1].messages_sent = 1;
  report.ranks[1].tensor_bytes = 1024;
  return report;
}

Comparison off_by(double error, bool ok) {
  Comparison comparison;
  comparison.ok = ok;
  comparison.max_error = error;
  return comparison;
}

RunOptions of_one_token() {
  RunOptions options;
  options.random = {1, 4, 1, 16};
  return options;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(RunReport, TextSaysWhatWasDone) {
  const std::string text = to_text(of_two_ranks(), of_one_token());
  EXPECT_EQ(text,
            "Attention, float32, on 2 ranks; shapes are [B, H, S, D]\n"
            "  q       [1, 4, 1, 16]  random\n"
            "  k, v    [1, 2, 1, 16]  random\n"
            "  scores  scale 0.25\n"
            "  kernel  fast, avx2, 1 thread per rank\n"
            "  ring    contiguous placement, overlapped transport, K,V travel in bf16\n"
            "  moved   256 B in 2 messages, at most 1 hop per rank\n"
            "  time    read 500 ms, forward 2 s\n"
            "  waited  forward 125 ms: communication that computing did not hide\n"
            "  memory  a rank's tensors at most 2.0 KiB, its process at most 0 B\n");
}

TEST(RunReport, EveryPartitionSaysWhatItMoves) {
  RunReport report = of_two_ranks();
  report.ranks.resize(4);
  report.ulysses = 2;
  for (RankReport& rank : report.ranks) {
    rank.messages_sent = 3;
    rank.bytes_sent = 512;
    rank.all_to_all_bytes = 128;
  }
  RunOptions options = of_one_token();
  options.parallel = "hybrid";
  const std::string text = to_text(report, options);
  EXPECT_TRUE(
      has(text,
          "  hybrid  heads over 2 ranks, all-to-all in float32\n"
          "  rings   of 2: contiguous placement, overlapped transport, K,V travel in bf16\n"
          "  moved   2.0 KiB in 12 messages: all-to-all 512 B, rings 1.5 KiB, at most 1 hop per rank\n"))
      << text;
  const auto json = nlohmann::json::parse(to_json(report, options));
  EXPECT_EQ(json["parallel"], "hybrid");
  EXPECT_EQ(json["ulysses"], 2);
  EXPECT_EQ(json["hops"], 1);
  EXPECT_EQ(json["all_to_all_bytes"], 512);

  report.ulysses = 4;
  options.parallel = "ulysses";
  EXPECT_TRUE(has(to_text(report, options),
                  "  ulysses heads over 4 ranks, all-to-all in float32\n"
                  "  moved   2.0 KiB in 12 messages\n"));
  report.ulysses = 1;
  options.parallel = "all-gather";
  EXPECT_TRUE(has(to_text(report, options),
                  "  gather  K,V of all ranks, in bf16, contiguous placement\n"
                  "  moved   2.0 KiB in 12 messages\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report, options))["hops"], 0);
}

TEST(RunReport, TextAndJsonNameTheFilesAndTheMask) {
  RunOptions options;
  options.q = "q.npy";
  options.k = "k.npy";
  options.v = "v.npy";
  options.dout = "dout.npy";
  options.causal = true;
  options.window = {3, -1};
  options.mask = {.prefix = 5,
                  .sink_tokens = 3,
                  .chunk = 64,
                  .blocks = "7:9",
                  .global_tokens = "1:2",
                  .intervals = "i.npy"};
  RunReport report = of_two_ranks();
  report.q_offset = 7;
  const std::string text = to_text(report, options);
  for (const char* part :
       {"Attention and its gradients", "[1, 4, 1, 16]  q.npy\n", "[1, 2, 1, 16]  k.npy, v.npy\n",
        "causal, window 3 before and 0 after",
        ", prefix 5, blocks 7:9, sink tokens 3, global tokens 1:2, chunks of 64",
        ", chunks of 64, intervals of i.npy, query 0 at key position 7", "4 hops per rank", "backward 0 us"})
    EXPECT_TRUE(has(text, part)) << part << " is not in\n" << text;
  const auto json = nlohmann::json::parse(to_json(report, options));
  for (const auto& [field, number] : {std::pair("prefix", 5), std::pair("sink_tokens", 3),
                                      std::pair("chunk", 64), std::pair("q_offset", 7)})
    EXPECT_EQ(json[field], number) << field;
  options.check = true;
  options.sink = "s.npy";
  for (const Index seq : {16384, 16385}) {
    report.q.seq = seq;
    EXPECT_EQ(has(to_text(report, options), "\n  Above 16k tokens dsink is not checked.\n"), seq > 16384);
  }
}

TEST(RunReport, OneRankThatFailsIsAFailure) {
  RunReport report = of_two_ranks();
  report.ranks[0].error(Result::out) = ErrorReport(off_by(1e-7, true), 1);
  EXPECT_TRUE(report.ok());
  report.ranks[0].error(Result::dv) = ErrorReport(off_by(0.5, false), 1);
  EXPECT_FALSE(report.ok());
  RunOptions options = of_one_token();
  options.check = true;
  const std::string text = to_text(report, options);
  EXPECT_TRUE(has(text,
                  "  array  rank  rows      max     mean  relative  verdict\n"
                  "  out       0     1  1.0e-07  0.0e+00   0.0e+00  ok\n"
                  "  dv        0     1  5.0e-01  0.0e+00   0.0e+00  FAIL\n"))
      << text;
  const auto json = nlohmann::json::parse(to_json(report, options));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["per_rank"][0]["dv"]["ok"], false);
  EXPECT_FALSE(json["per_rank"][1].contains("out")) << "a rank without tokens has no entry";
}

TEST(RunReport, AnArrayOfWhichTheCheckSaysNothingIsNotOk) {
  RunReport report = of_two_ranks();
  Comparison unknown = off_by(0.5, false);
  unknown.decides = false;
  report.ranks[0].error(Result::dv) = ErrorReport(unknown, 1);
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.is_wrong());
  EXPECT_EQ(check_error(report),
            "the check can say nothing about dv: roundings may reach more than 10 % of the norm");
  EXPECT_TRUE(has(check_table(report), "  0.0e+00   0.0e+00  unknown\n")) << check_table(report);
  EXPECT_EQ(nlohmann::json::parse(to_json(report, of_one_token()))["per_rank"][0]["dv"]["decides"], false);
  report.ranks[1].error(Result::out) = ErrorReport(off_by(0.5, false), 1);
  EXPECT_TRUE(report.is_wrong());
  EXPECT_EQ(check_error(report), "the check failed");
}

TEST(RunReport, NaNIsPrintedAsNaN) {
  RunReport report = of_two_ranks();
  Comparison comparison = off_by(0, false);
  comparison.got = std::numeric_limits<double>::quiet_NaN();
  report.ranks[0].error(Result::out) = ErrorReport(comparison, 1);
  EXPECT_TRUE(has(check_table(report), "  nan   nan       nan  FAIL\n")) << check_table(report);
}

TEST(RunReport, JsonHasTheFigures) {
  RunReport report = of_two_ranks();
  report.ranks[1].backward_exposed_seconds = 0.25;
  const auto json = nlohmann::json::parse(to_json(report, of_one_token()));
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["q_shape"], (std::vector<Index>{1, 4, 1, 16}));
  EXPECT_EQ(json["kv_shape"], (std::vector<Index>{1, 2, 1, 16}));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["hops"], 1);
  EXPECT_EQ(json["messages"], 2);
  EXPECT_EQ(json["bytes_moved"], 256);
  EXPECT_EQ(json["tensor_bytes"], 2048);
  EXPECT_EQ(json["forward_exposed_seconds"], 0.125);
  EXPECT_EQ(json["backward_exposed_seconds"], 0.25);
  EXPECT_EQ(json["seed"], 1);
  EXPECT_EQ(json["per_rank"].size(), 2U);
  EXPECT_FALSE(json.contains("files"));
}

TEST(RunReport, JsonStandsNamesThatAreNoText) {
  RunOptions options;
  options.q = "\xff.npy";
  options.k = options.v = "line\nend\".npy";
  const auto json = nlohmann::json::parse(to_json(of_two_ranks(), options));
  EXPECT_EQ(json["files"]["k"], "line\nend\".npy");
}

TEST(TrainReport, TextAndJsonHaveTheFigures) {
  TrainReport report;
  report.train_seconds = 2;
  report.evaluate_seconds = 0.5;
  report.tokens = 8192;
  report.tensor_bytes = 1536;
  report.evaluations = {{64, 128, 16, {0.75, 1}, {0.25, 0.5}}};
  EXPECT_EQ(line_of({7, 64, 4.25, 0.125}, 1.5), "       7      64   4.2500    0.1250      1.5\n");
  const std::string text = to_text(report);
  EXPECT_TRUE(has(text,
                  "  time    2 s, 4096 tokens/s; evaluation 500 ms\n"
                  "  memory  a rank's tensors at most 1.5 KiB\n"));
  EXPECT_TRUE(has(text,
                  "  length  labels  accuracy  possible  window  accuracy  possible\n"
                  "      64     128    0.7500    1.0000      16    0.2500    0.5000\n"));
  const auto json = nlohmann::json::parse(to_json(report, TrainOptions{}));
  EXPECT_EQ(json["evaluations"][0].dump(),
            R"({"accuracy":0.75,"labels":128,"length":64,"possible":1.0,"window":16,)"
            R"("window_accuracy":0.25,"window_possible":0.5})");
}

}  // namespace
}  // namespace ring_attention::test
