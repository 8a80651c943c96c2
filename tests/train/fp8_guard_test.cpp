// When precision.fp8_guard lets layers fall back, and that a run which goes on from its text decides alike.
#include "lib/train/fp8_guard.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

constexpr int kLayers = 3;

Config config_with_guard() {
  Config config;
  config.model.layers = kLayers;
  config.precision.gemm = GemmFormat::kFp8;
  config.precision.fp8_guard = Switch::kOn;
  return config;
}

// Nothing lost but where a layer's gradient of fc2 saturates, or underflows.
std::vector<Fp8Numbers> numbers(int layer = -1, float saturated = 0, float underflowed = 0) {
  std::vector<Fp8Numbers> all(kLayers * kNumFp8Operands * kNumLinears, {.scale = 1, .amax = 1, .elements = 1000});
  if (layer < 0) return all;
  const auto slot =
      (static_cast<size_t>(Fp8Operand::kGradient) * kLayers + static_cast<size_t>(layer)) * kNumLinears + 3;
  all[slot].saturated = saturated;
  all[slot].underflowed = underflowed;
  return all;
}

TEST(Fp8Guard, a_layer_falls_that_keeps_losing_numbers) {
  const Config config = config_with_guard();
  for (const auto& lost : {numbers(1, 2, 0), numbers(1, 0, 251)}) {
    Fp8Guard guard(config);
    for (int step = 1; step < Fp8Guard::kRangeSteps; ++step) EXPECT_EQ(guard.step(3.0, lost), "") << step;
    EXPECT_EQ(guard.step(3.0, numbers(1, 1, 250)), "") << "a step within the limits begins the count anew";
    for (int step = 1; step < Fp8Guard::kRangeSteps; ++step) EXPECT_EQ(guard.step(3.0, lost), "") << step;
    EXPECT_EQ(guard.fallen(), (std::vector<bool>{false, false, false}));
    EXPECT_NE(guard.step(3.0, lost).find("layers 1 lost numbers"), std::string::npos);
    EXPECT_EQ(guard.fallen(), (std::vector<bool>{false, true, false}));
    for (int step = 0; step < 2 * Fp8Guard::kRangeSteps; ++step) EXPECT_EQ(guard.step(3.0, lost), "") << "it fell once";
  }
}

TEST(Fp8Guard, all_layers_fall_where_the_loss_keeps_rising) {
  const Config config = config_with_guard();
  Fp8Guard guard(config);
  for (int step = 0; step < 50; ++step) EXPECT_EQ(guard.step(4.0 - step * 0.02, numbers()), "");
  for (int step = 1; step < Fp8Guard::kLossSteps; ++step) EXPECT_EQ(guard.step(6.0, numbers()), "");
  EXPECT_EQ(guard.step(3.0, numbers()), "") << "one step as before ends the spike";
  for (int step = 1; step < Fp8Guard::kLossSteps; ++step) EXPECT_EQ(guard.step(6.0, numbers()), "");
  EXPECT_NE(guard.step(6.0, numbers()).find("all layers go on in fp32"), std::string::npos);
  EXPECT_EQ(guard.fallen(), (std::vector<bool>{true, true, true}));
}

TEST(Fp8Guard, goes_on_from_its_text_as_if_it_had_not_stopped) {
  const Config config = config_with_guard();
  Fp8Guard whole(config);
  for (int step = 0; step < 40; ++step) {
    Fp8Guard resumed(config);
    ASSERT_TRUE(resumed.load(whole.text()));
    EXPECT_EQ(resumed.text(), whole.text());
    const double loss = step < 30 ? 3.0 + 0.1 * (step % 3) : 5.0;
    EXPECT_EQ(resumed.step(loss, numbers(2, 5, 0)), whole.step(loss, numbers(2, 5, 0))) << step;
    EXPECT_EQ(resumed.text(), whole.text());
    EXPECT_EQ(resumed.fallen(), whole.fallen());
  }
  EXPECT_EQ(whole.fallen(), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(Fp8Guard::fallen_of(whole.text()), "0, 1, 2");
  EXPECT_EQ(Fp8Guard::fallen_of("4008000000000000 0 -1 0 -1"), "0, 2");
  Fp8Guard guard(config);
  EXPECT_EQ(Fp8Guard::fallen_of(guard.text()), "");
  for (const char* text : {"", "0 0 0 0", "0 0 0 0 0 0", "x 0 0 0 0"}) {
    const auto loaded = guard.load(text);
    ASSERT_FALSE(loaded) << text;
    EXPECT_EQ(loaded.error().code, ExitCode::kFile);
  }
}

// Of layers that a config keeps out of FP8 nothing is remembered: they may join at a resume.
TEST(Fp8Guard, layers_outside_fp8_have_not_fallen) {
  Config config = config_with_guard();
  config.precision.fp8_first_layers = 1;
  Fp8Guard first(config);
  EXPECT_EQ(first.fallen(), (std::vector<bool>{true, false, false}));
  const Config joined = config_with_guard();
  Fp8Guard later(joined);
  ASSERT_TRUE(later.load(first.text()));
  EXPECT_EQ(later.fallen(), (std::vector<bool>{false, false, false}));
}

}  // namespace
}  // namespace tri
