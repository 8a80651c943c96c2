// The report of FP8 casts.
#include "lib/observe/status/fp8_report.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

// Two layers whose tensors have processed a thousand numbers each, one of them with a share that saturates.
std::vector<Fp8Numbers> numbers_of(const Config& config, float saturated) {
  const Fp8Slots slots(config);
  std::vector<Fp8Numbers> numbers(static_cast<size_t>(slots.count()));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = {.scale = 64, .amax = static_cast<float>(i), .elements = 1000, .underflowed = 10};
  numbers[static_cast<size_t>(slots.of(Fp8Operand::kGradient, 1, 2))].saturated = saturated;  // fc1
  return numbers;
}

Config two_layers() {
  Config config;
  config.model.layers = 2;
  config.model.kv_heads = config.model.heads;
  config.model.head_dim = config.model.hidden / config.model.heads;
  config.precision.gemm = GemmFormat::kFp8;
  return config;
}

TEST(Fp8Report, names_every_tensor_with_its_numbers) {
  const Config config = two_layers();
  std::vector<Fp8Numbers> numbers = numbers_of(config, 4);
  numbers[0].elements = 0;  // nothing was cast, as in a layer without FP8
  const auto line = nlohmann::json::parse(fp8_json(7, config, numbers));
  EXPECT_EQ(line["fp8"]["step"], 7);
  ASSERT_EQ(line["fp8"]["tensors"].size(), numbers.size() - 1);
  EXPECT_EQ(line["fp8"]["tensors"][0]["tensor"], "layers/0/attention/qkv/weight");
  for (const auto& tensor : line["fp8"]["tensors"]) {
    EXPECT_EQ(tensor["scale"], 64);
    EXPECT_EQ(tensor["underflowed"], 0.01);
    const bool is_it = tensor["tensor"] == "layers/1/mlp/fc1/gradient";
    EXPECT_EQ(tensor["saturated"], is_it ? 0.004 : 0.0);
    if (is_it) {
      EXPECT_EQ(tensor["amax"], Fp8Slots(config).of(Fp8Operand::kGradient, 1, 2));
    }
  }
}

TEST(Fp8Report, warns_of_the_worst_beyond_the_limit) {
  const Config config = two_layers();
  EXPECT_EQ(fp8_warning(config, numbers_of(config, 1)), "") << "at the limit";
  std::vector<Fp8Numbers> numbers = numbers_of(config, 4);
  EXPECT_EQ(fp8_warning(config, numbers),
            "fp8: 0.4 % of layers/1/mlp/fc1/gradient saturated (above the limit in 1 of 24 tensors)");
  numbers[1].saturated = 2;
  numbers[2].underflowed = 500;
  EXPECT_EQ(fp8_warning(config, numbers),
            "fp8: 0.4 % of layers/1/mlp/fc1/gradient saturated (above the limit in 2 of 24 tensors), 50 % of "
            "layers/0/mlp/fc1/input underflowed (above the limit in 1 of 24 tensors)");
}

}  // namespace
}  // namespace tri
