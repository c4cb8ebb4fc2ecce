// Numbers at the edge: flags, arguments of the library and a plan take the largest that core/index.hpp allows, and refuse
// the next. A sanitizer finds what overflows on the way.
#include "ring_attention/core/shape.hpp"

#include <gtest/gtest.h>

#include <set>

#include "io/npy.hpp"
#include "program/command_words.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/call.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

constexpr Index smallest = std::numeric_limits<Index>::min(), largest = std::numeric_limits<Index>::max();

// ---- flags ---------------------------------------------------------------------------------------------

/// The error for what is no number says how many numbers a flag takes: "needs B,H,S,D, each a whole number". 0: none.
Index numbers_of(const std::string& error) {
  const std::size_t end = error.find(", each a whole number");
  if (end == std::string::npos) return 0;
  return 1 + std::count(error.begin(), error.begin() + static_cast<std::ptrdiff_t>(end), ',');
}

template <class Options>
void expect_bounds(Declare<Options> declare) {
  const std::set<std::string> lengths{"--seq",    "--random", "--window",      "--q-offset", "--context",
                                      "--prompt", "--prefix", "--sink-tokens", "--chunk"},
      seeds{"--seed", "--dropout-seed"};
  for (const std::string& flag : flags_of(declare)) {
    const Index numbers = numbers_of(error_of(declare, {flag, "x"}));
    if (numbers == 0) continue;
    const Index bound = seeds.contains(flag)     ? largest
                        : lengths.contains(flag) ? largest_position
                                                 : largest_count;
    for (const Index number :
         {smallest, Index{-1}, Index{0}, Index{1}, largest_count, largest_count + 1, most_elements,
          largest_position, largest_position + 1, largest / 4, largest - 1, largest}) {
      std::string value = std::to_string(number);
      for (Index i = 1; i < numbers; ++i) value += "," + std::to_string(number);
      const std::string error = error_of(declare, {flag + "=" + value});
      EXPECT_EQ(std::ranges::count(error, '\n'), 0) << error;
      const bool beyond = number > bound || number == smallest;
      EXPECT_EQ(beyond ? numbers_of(error) : numbers, numbers) << flag << " " << value << ": " << error;
    }
  }
}

TEST(Edges, OfEveryFlag) {
  expect_bounds(declare_run_options);
  expect_bounds(declare_decode_options);
  expect_bounds(declare_bench_options);
  expect_bounds(declare_bench_decode_options);
  expect_bounds(declare_train_options);
  expect_bounds(declare_plan_options);
  expect_bounds(declare_example_options);
}

TEST(Edges, TheLargestAreTaken) {
  const std::string position = std::to_string(largest_position);
  const auto run = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--random", "1,2,12,4"});
    return error_of(declare_run_options, words);
  };
  EXPECT_EQ(run({"--window", position + "," + position, "--q-offset", "-" + position}), "");
  EXPECT_EQ(run({"--causal", "--q-offset", position, "--seed", std::to_string(largest)}), "");
  EXPECT_EQ(error_of(declare_run_options, {"--random", "1,1,281474976710656,1"}), "");
  EXPECT_NE(error_of(declare_run_options, {"--random", "1,1,2,2147483648"}).find("2^31 - 1"),
            std::string::npos);
  EXPECT_EQ(error_of(declare_plan_options, {"--context", position, "--layers", "2147483647"}), "");
  EXPECT_NE(error_of(declare_plan_options, {"--tensor", "1048576", "--ulysses", "1048576", "--ring",
                                            "1048576", "--data", "1048576"}),
            "");
}

// ---- plan ----------------------------------------------------------------------------------------------

TEST(Edges, APlanHasNoInfinity) {
  for (const char* rate : {"--flops", "--link", "--nic"})
    for (const char* number : {"1e-308", "1e-300", "1e300", "1e308"})
      for (const char* phase : {"training", "prefill", "decode"}) {
        CommandLine command("plan", "");
        PlanOptions options;
        declare_plan_options(command, options);
        const std::array words{"plan", rate, number, "--phase", phase, "--ranks", "64"};
        (void)command.parse(static_cast<int>(words.size()), words.data());
        std::string json;
        try {
          json = to_json(make_plan(options));
        } catch (const InputError&) {
          continue;
        }
        for (const char* field : {"seconds", "exposed_seconds", "memory_bytes", "smallest_shard",
                                  "utilisation", "tokens_per_second", "longest_context"})
          EXPECT_EQ(json.find(std::string("\"") + field + "\": null"), std::string::npos) << field;
      }
  EXPECT_NE(error_of(declare_plan_options, {"--flops", "1e-308"}), "");
}

TEST(Edges, OfThePlansStructs) {
  using plan::MeshWish, plan::ModelShape, plan::Machine, plan::Workload;
  const Workload good{plan::model_named("llama-3-8b"), plan::Phase::training, 131072, 64};
  const Machine machine = plan::machine_named("8xh100");
  EXPECT_NO_THROW((void)plan::candidates(good, machine, 64));
  const auto refused = [&](auto spoil) {
    Workload work = good;
    Machine device = machine;
    MeshWish wish;
    int ranks = 64;
    spoil(work, device, wish, ranks);
    EXPECT_THROW((void)plan::candidates(work, device, ranks, wish), InputError);
  };
  for (const Index size : {smallest, Index{0}, largest_count + 1, largest})
    for (Index ModelShape::* field : {&ModelShape::layers, &ModelShape::hidden, &ModelShape::heads,
                                      &ModelShape::kv_heads, &ModelShape::ffn, &ModelShape::vocab})
      refused([=](auto& work, auto&, auto&, auto&) { work.model.*field = size; });
  for (const Index size : {smallest, Index{0}, largest_count + 1, largest})
    for (Index Machine::* field : {&Machine::node, &Machine::nics})
      refused([=](auto&, auto& device, auto&, auto&) { device.*field = size; });
  for (const double number : {-1.0, 0.0, 0x1p60, HUGE_VAL, std::nan("")})
    for (double Workload::* field :
         {&Workload::context, &Workload::batch, &Workload::element, &Workload::micro_batch})
      refused([=](auto& work, auto&, auto&, auto&) { work.*field = number; });
  refused([](auto&, auto& device, auto&, auto&) { device.linear_flops = 1e-300; });
  for (const int size : {std::numeric_limits<int>::min(), -1, 0, std::numeric_limits<int>::max()}) {
    for (std::optional<int> MeshWish::* field :
         {&MeshWish::tensor, &MeshWish::ulysses, &MeshWish::ring, &MeshWish::data})
      refused([=](auto&, auto&, auto& wish, auto&) { wish.*field = size; });
    refused([=](auto&, auto&, auto& wish, auto&) { wish.pipeline = size; });
    if (size < 1) refused([=](auto& work, auto&, auto&, auto&) { work.chunks = size; });
    if (size < 1) refused([=](auto&, auto&, auto&, int& ranks) { ranks = size; });
  }
}

// ---- arguments of the library --------------------------------------------------------------------------

bool is_refused(const auto& work) {
  try {
    work();
  } catch (const InputError&) {
    return true;
  }
  return false;
}

TEST(Edges, OfShapes) {
  const std::array<Index, 7> extents{smallest,      0,      1, largest_count, largest_count + 1,
                                     most_elements, largest};
  std::vector<float> one(1);
  const Scoring scoring;
  for (const Index batch : extents)
    for (const Index heads : extents)
      for (const Index seq : extents)
        for (const Index dim : extents) {
          const Shape shape{batch, heads, seq, dim};
          const View<const float> view(one.data(), shape);
          if (!fits(shape)) {
            EXPECT_THROW((void)require_attention_shapes(shape, shape, shape), Error);
            EXPECT_THROW((void)Tensor<float>(shape), std::bad_alloc);
          }
          if (!within(seq, 0, largest_position)) continue;
          const Placement tokens(PlacementKind::contiguous, seq, 1);
          const Placements both{tokens, tokens};
          const bool counts =
              std::min({batch, heads, dim}) >= 1 && std::max({batch, heads, dim}) <= largest_count;
          const bool good = counts && seq <= largest_count && fits(shape);
          AttentionArrays<float> arrays{view, view, view};
          const Call<float> call{"forward", arrays, both, scoring, ring(), ""};
          const auto check = [&] { check_arguments(Check{}, call, call.shared(0, 1)); };
          EXPECT_EQ(is_refused(check), !good) << to_string(shape);
          arrays.bias = view;
          const bool refused = is_refused(check);
          EXPECT_TRUE(refused || seq == dim || shape == Shape{});
          const NpyHeader header{Dtype::float32, {batch, heads, seq, dim}, 0};
          if (std::min({batch, heads, seq, dim}) < 0) continue;  // a header has no negative extent
          const bool readable = counts && seq >= 1 && fits(shape);
          EXPECT_EQ(is_refused([&] { (void)array_shape(header, "file"); }), !readable) << to_string(shape);
        }
}

TEST(Edges, OfAMask) {
  const std::array<Index, 4> sides{0, 7, largest_position, Mask::unlimited};
  const std::array<Index, 3> positions{0, 1000, largest_position};
  for (const Index left : sides)
    for (const Index right : sides)
      for (const Index offset : {-largest_position, Index{0}, largest_position}) {
        const Mask mask{left, right, offset};
        EXPECT_TRUE(mask.valid());
        for (const Index query : positions)
          for (const Index key : positions) {
            const Interval seen = mask.visible(query);
            EXPECT_EQ(mask.allowed(query, key), seen.begin <= key && key < seen.end);
            EXPECT_EQ(mask.allowed(query, key), mask.coverage({query, 1, 1}, {key, 1, 1}) == Coverage::full);
          }
      }
  for (const Index number :
       {Index{1}, largest_position})  // of every set at once: sums of them do not overflow
    for (const Index offset : {-largest_position, Index{0}, largest_position}) {
      Mask mask{largest_position, 0, offset};
      mask.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.blocks = {{0, number}},
                                                                  .sink_tokens = number,
                                                                  .globals = {{number - 1, number}},
                                                                  .chunk = number});
      EXPECT_EQ(mask.sets->fault(number, number), std::nullopt);
      for (const Index query : positions)
        for (const Index key : positions)
          EXPECT_EQ(mask.allowed(query, key), mask.coverage({query, 1, 1}, {key, 1, 1}) == Coverage::full);
    }
  for (const Index side : {smallest, Index{-1}, largest_position + 1, Mask::unlimited - 1, largest}) {
    EXPECT_FALSE((Mask{side, 0, 0}.valid()));
    EXPECT_FALSE((Mask{0, side, 0}.valid()));
    EXPECT_EQ((Mask{0, 0, side}.valid()), side == -1);
  }
}

TEST(Edges, OfOtherStructs) {
  for (const Index seq : {smallest, Index{-1}, largest_position + 1, largest})
    for (const PlacementKind kind :
         {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag})
      EXPECT_THROW(Placement(kind, seq, 3), Error);
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    EXPECT_GE(Placement(kind, largest_position, largest_count / 2).tokens(0), largest_position >> 30U);
    EXPECT_THROW(Placement(kind, 1, std::numeric_limits<int>::max()), Error);
  }
  for (const Index size : {smallest, Index{0}, Tiling::largest_size + 1, largest})
    EXPECT_THROW(Tiling{size}, InputError);
  EXPECT_EQ(Tiling(Tiling::largest_size).of(largest_position).begin, largest_position);
  EXPECT_THROW(Documents({0, largest_position + 1}), Error);
  EXPECT_THROW(Mesh(0, 65536, {65536, 65537, 1, 1}), InputError) << "the product is 65536 modulo 2^32";
  EXPECT_THROW(require_shareable(largest_count + 1, 1, 2), Error);
  model::ModelShape shape = TrainOptions().shape();
  EXPECT_NO_THROW(require_valid(shape));
  shape.width = shape.hidden = shape.layers = largest_count;
  EXPECT_THROW(require_valid(shape), InputError);
  shape.width = largest - 1;
  EXPECT_THROW(require_valid(shape), InputError);
}

}  // namespace
}  // namespace ring_attention::test
