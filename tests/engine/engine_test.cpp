// An inference engine compared with a training engine: equal forward passes, less memory.
#include "lib/engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

struct InferenceEngine {
  explicit InferenceEngine(const Config& config)
      : device(make_cpu_device()),
        arena(*device, rank_bytes(config, mesh, *device, EngineKind::kInference)),
        engine({.config = config, .mesh = mesh, .device = *device, .arena = arena}, EngineKind::kInference) {}

  const Mesh mesh = make_mesh(0, {});
  std::unique_ptr<Device> device;
  Arena arena;
  Engine engine;
};

std::vector<Config> models() {
  Config gpt = tiny_config(), llama = tiny_config(), mixed = tiny_config();
  llama.model.norm = Norm::kRmsNorm;
  llama.model.activation = Activation::kSwiglu;
  llama.model.position = Position::kRope;
  llama.model.kv_heads = 2;
  llama.model.tie_embeddings = false;
  llama.model.bias = false;
  mixed.precision.compute = Dtype::kBF16;
  return {gpt, llama, mixed};
}

TEST(Engine, inference_has_the_losses_and_logits_of_training_bit_for_bit) {
  for (const Config& config : models()) {
    OneRank rank(config);
    rank.step(0);
    rank.trainer->runtime().synchronize();
    InferenceEngine inference(rank.config);
    const auto& own = inference.engine.parameters();
    ASSERT_EQ(own.size(), 1u);
    ASSERT_EQ(own.front().size(), rank.parameters().size());
    for (size_t i = 0; i < own.front().size(); ++i) {
      const Parameter &from = rank.parameters()[i], &to = own.front()[i];
      ASSERT_EQ(from.spec.name, to.spec.name);
      ASSERT_EQ(from.weight.bytes(), to.weight.bytes());
      std::memcpy(to.weight.data, from.weight.data, static_cast<size_t>(from.weight.bytes()));
    }
    Evaluator evaluator(inference.engine);
    for (int step = 1; step < 4; ++step)
      EXPECT_EQ(evaluator.evaluate(rank.tokens(step, 0), rank.tokens(step, 1)),
                rank.evaluator->evaluate(rank.tokens(step, 0), rank.tokens(step, 1)));
    const std::vector<int32_t> text = {1, 5, 2, 7};
    EXPECT_EQ(evaluator.next_token_logits(text), rank.evaluator->next_token_logits(text));
  }
}

TEST(Engine, inference_takes_the_memory_that_was_predicted_and_none_for_training) {
  for (const Config& unresolved : models()) {
    const Config config = value_or_throw(resolve_config(unresolved, 1));
    const InferenceEngine inference(config);
    Arena measuring;
    allocate_rank(config, inference.mesh, measuring, EngineKind::kInference);
    EXPECT_EQ(inference.arena.bytes_by_name(), measuring.bytes_by_name());
    EXPECT_LT(inference.arena.used(), rank_bytes(config, inference.mesh, *inference.device));
    std::set<std::string> names;
    for (const auto& [name, bytes] : inference.arena.bytes_by_name()) names.insert(name);
    EXPECT_TRUE(names.count("parameters"));
    for (const char* name : {"gradients", "gradient workspace", "master weights", "optimizer moments"})
      EXPECT_FALSE(names.count(name)) << name;
  }
}

TEST(BatchInputs, a_batch_that_is_larger_than_its_tensors_is_refused) {
  const Config config = value_or_throw(resolve_config(tiny_config(), 1));
  InferenceEngine inference(config);
  const std::vector<int32_t> full(static_cast<size_t>(config.data.global_batch * config.model.seq_len), 1);
  inference.engine.batch().load(full, full);
  inference.engine.runtime().synchronize();
  const std::vector<int32_t> larger(full.size() + 1, 1);
  EXPECT_THROW(inference.engine.batch().load(larger, full), Fatal);
  EXPECT_THROW(inference.engine.batch().load(full, larger), Fatal);
  inference.engine.runtime().synchronize();
}

TEST(Engine, inference_has_no_parameter_store) {
  const Config config = value_or_throw(resolve_config(tiny_config(), 1));
  InferenceEngine inference(config);
  EXPECT_THROW(inference.engine.store(), Fatal);
}

}  // namespace
}  // namespace tri::test
