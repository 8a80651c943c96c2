// A Trainer on a mesh of one rank, without MPI, and access to its state.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/base/random.h"
#include "kernels/cpu/device.h"
#include "lib/infer/evaluator.h"
#include "lib/train/trainer.h"

namespace tri::test {

inline Config tiny_config() {
  Config c;
  c.run.seed = 3;
  c.model = {.layers = 2, .hidden = 8, .heads = 4, .kv_heads = 4, .ffn_hidden = 12, .vocab = 11, .seq_len = 6};
  c.model.init_std = 0.3;
  c.data = {.global_batch = 4, .micro_batch = 2};
  return c;
}

inline std::vector<float> to_floats(Tensor tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.dtype == Dtype::kF32 ? tensor.as<float>()[i] : static_cast<float>(tensor.as<bf16>()[i]);
  return values;
}

class OneRank {
 public:
  explicit OneRank(const Config& unresolved, UpdateEnd update = UpdateEnd::kStep)
      : config(value_or_throw(resolve_config(unresolved, 1))), device(make_cpu_device()) {
    Arena measuring;
    allocate_rank(config, make_mesh(0, {}), measuring);
    predicted = measuring.bytes_by_name();
    arena = std::make_unique<Arena>(*device, measuring.used());
    trainer = std::make_unique<Trainer>(
        RankContext{.config = config, .mesh = make_mesh(0, {}), .device = *device, .arena = *arena},
        TrainerOptions{.update = update});
    trainer->make_start_values();
    evaluator = std::make_unique<Evaluator>(trainer->engine());
  }

  // Returns the tokens of a step, (M, B, T): a pure function of the step.
  std::vector<int32_t> tokens(int64_t step, int shift) const {
    std::vector<int32_t> list;
    for (int i = 0; i < config.data.global_batch * config.model.seq_len; ++i) {
      const int sample = i / config.model.seq_len, t = i % config.model.seq_len + shift;
      list.push_back(static_cast<int32_t>(random_u64(77, static_cast<uint64_t>((step * 1000 + sample) * 1000 + t)) %
                                          static_cast<uint64_t>(config.model.vocab)));
    }
    return list;
  }
  StepResult step(int64_t number) { return trainer->step(number, tokens(number, 0), tokens(number, 1)); }

  const std::vector<Parameter>& parameters() { return trainer->store().memory.parameters().front(); }
  std::map<std::string, std::vector<float>> weights() {
    trainer->runtime().synchronize();
    std::map<std::string, std::vector<float>> all;
    for (const Parameter& parameter : parameters()) all[parameter.spec.name] = to_floats(parameter.weight);
    return all;
  }
  // Returns the gradients that the last step left (zero < 2, AdamW).
  std::map<std::string, std::vector<float>> gradients() {
    trainer->runtime().synchronize();
    std::map<std::string, std::vector<float>> all;
    for (const Parameter& parameter : parameters())
      all[parameter.spec.name] = to_floats(trainer->store().gradients.gradient(parameter));
    return all;
  }

  Config config;
  std::unique_ptr<Device> device;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Evaluator> evaluator;
  std::vector<std::pair<std::string, int64_t>> predicted;  // bytes by name, from a measuring arena
};

}  // namespace tri::test
