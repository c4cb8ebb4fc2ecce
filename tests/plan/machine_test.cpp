#include "plan/machine.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "plan/model_shape.hpp"
#include "support/input_error.hpp"

namespace ring_attention::plan {
namespace {

using test::input_error;

TEST(ModelShape, ParametersOfPublishedModels) {
  // LLaMA, table 2, and the model cards of Llama 3; to the digits that they print.
  for (const auto& [name, billions, digits] :
       {std::tuple("llama-7b", 6.7, 0.05), std::tuple("llama-13b", 13.0, 0.05),
        std::tuple("llama-30b", 32.5, 0.05), std::tuple("llama-65b", 65.2, 0.1),
        std::tuple("llama-3-8b", 8.03, 0.005), std::tuple("llama-3-70b", 70.6, 0.05),
        std::tuple("llama-3-405b", 405.9, 0.1), std::tuple("llama-3b", 3.43, 0.005)})
    EXPECT_NEAR(model_named(name).parameters() * 1e-9, billions, digits) << name;
}

TEST(ModelShape, EveryNamedModelIsValid) {
  for (const ModelShape& model : named_models()) {
    EXPECT_NO_THROW(validate(model)) << model.name;
    EXPECT_EQ(model.dim() * model.heads, model.hidden) << model.name;
  }
}

TEST(ModelShape, BadInput) {
  EXPECT_EQ(
      input_error([] { (void)model_named("llama-9b"); }),
      "unknown model 'llama-9b': known are llama-3b, llama-7b, llama-13b, llama-30b, llama-65b, llama-3-8b, "
      "llama-3-70b, llama-3-405b: give one of them, or its numbers");
  ModelShape model = model_named("llama-7b");
  model.hidden = 4097;
  EXPECT_NE(input_error([&] { validate(model); }).find("multiple of the 32 heads"), std::string::npos);
  model = model_named("llama-7b");
  model.kv_heads = 5;
  EXPECT_NE(input_error([&] { validate(model); }).find("must divide"), std::string::npos);
  model.kv_heads = 0;
  EXPECT_THROW(validate(model), InputError);
}

TEST(Machine, EveryNamedMachineIsValidAndHasItsSource) {
  for (const Machine& machine : named_machines()) {
    EXPECT_NO_THROW(validate(machine)) << machine.name;
    EXPECT_FALSE(machine.source.empty()) << machine.name;
  }
}

TEST(Machine, NominalRatesTimesTheShareThatIsReached) {
  const Machine h100 = machine_named("8xh100");
  EXPECT_DOUBLE_EQ(h100.linear_flops, 0.7 * 989e12);
  EXPECT_DOUBLE_EQ(h100.link.beta, 0.82 * 450e9);
  EXPECT_DOUBLE_EQ(h100.nic.beta, 26e9);  // Yang et al., table 5
  EXPECT_DOUBLE_EQ(machine_named("8xa100").nic.beta, 13e9);
  EXPECT_DOUBLE_EQ(machine_named("8xh200").memory, 141e9);
  EXPECT_DOUBLE_EQ(h100.attention_rate(128), 616e12);
  EXPECT_NEAR(h100.attention_rate(64), 473e12, 2e12);
}

TEST(Machine, FlowsShareTheNicsOfTheirNode) {
  Machine machine = machine_named("8xh100");
  EXPECT_DOUBLE_EQ(machine.shared_nic(1).beta, 26e9);  // one message uses one NIC
  EXPECT_DOUBLE_EQ(machine.shared_nic(8).beta, 26e9);
  EXPECT_DOUBLE_EQ(machine.shared_nic(16).beta, 13e9);
  machine.nics = 1;
  EXPECT_DOUBLE_EQ(machine.shared_nic(1).beta, 26e9);
  EXPECT_DOUBLE_EQ(machine.shared_nic(8).beta, 26e9 / 8);
}

TEST(Machine, ALinkTakesAlphaAndBytesOverBeta) {
  const LinkClass link{2e-6, 1e9};
  EXPECT_DOUBLE_EQ(link.seconds(1000), 3e-6);
  EXPECT_EQ(link.seconds(0), 0);
}

TEST(Machine, BadInput) {
  EXPECT_NE(input_error([] { (void)machine_named("9xh100"); }).find("8xh100, 8xh200, 8xa100, tpu-v4"),
            std::string::npos);
  Machine machine = machine_named("8xh100");
  for (const double rate :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    machine.link.beta = rate;
    EXPECT_THROW(validate(machine), InputError) << rate;
  }
  machine = machine_named("8xh100");
  machine.nics = 0;
  EXPECT_THROW(validate(machine), InputError);
}

}  // namespace
}  // namespace ring_attention::plan
