// Checks of the GEMM rate, and of a training that must be bit-identical when repeated.
#include <bit>

#include "io/base/hash.h"
#include "io/base/random.h"
#include "io/base/text_file.h"
#include "kernels/gemm_search.h"
#include "kernels/ops.h"
#include "lib/bench/measure.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/host_facts.h"
#include "lib/doctor/timing.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

constexpr int kSteps = 3;

// The model is large enough to use the tensor cores and all multiprocessors of a GPU, and tiny on a CPU.
Config mini_config(DeviceKind kind) {
  const bool gpu = kind == DeviceKind::kCuda;
  Config c;
  c.run.device = device_choice(kind);
  c.run.seed = 16;
  c.model.layers = 2;
  c.model.hidden = gpu ? 1024 : 64;
  c.model.heads = gpu ? 8 : 4;
  c.model.vocab = gpu ? 4096 : 256;
  c.model.seq_len = gpu ? 512 : 32;
  c.data.global_batch = 4;
  c.data.micro_batch = 2;
  if (gpu) c.precision.compute = Dtype::kBF16;
  return value_or_throw(resolve_config(c, 1));
}

class MiniTraining {
 public:
  explicit MiniTraining(Device& device)
      : config_(mini_config(device.kind())),
        mesh_(make_mesh(0, {})),
        arena_(device, rank_bytes(config_, mesh_, device)),
        trainer_({.config = config_, .mesh = mesh_, .device = device, .arena = arena_}) {}

  // Returns the bits of weights and losses after some steps from the start values.
  std::vector<uint32_t> train() {
    const auto count = static_cast<size_t>(config_.data.global_batch) * static_cast<size_t>(config_.model.seq_len);
    std::vector<int32_t> inputs(count), targets(count);
    for (size_t i = 0; i < count; ++i) {
      const auto token = [&](size_t at) {
        return static_cast<int32_t>(random_u64(16, at) % static_cast<uint64_t>(config_.model.vocab));
      };
      inputs[i] = token(i);
      targets[i] = token(i + 1);
    }
    trainer_.make_start_values();
    std::vector<uint32_t> bits;
    for (int step = 0; step < kSteps; ++step) {
      const StepResult result = trainer_.step(step, inputs, targets);
      bits.push_back(std::bit_cast<uint32_t>(static_cast<float>(result.loss)));
    }
    trainer_.runtime().synchronize();
    for (const Parameter& parameter : trainer_.store().memory.parameters().front()) append(parameter.weight, bits);
    return bits;
  }

 private:
  void append(const Tensor& weight, std::vector<uint32_t>& bits) {
    const auto bytes = static_cast<size_t>(weight.bytes());
    const size_t at = bits.size();
    bits.resize(at + (bytes + 3) / 4);
    Stream& stream = trainer_.runtime().compute();
    stream.copy(bits.data() + at, weight.data, weight.bytes());
    stream.synchronize();
  }

  const Config config_;
  const Mesh mesh_;
  Arena arena_;
  Trainer trainer_;
};

}  // namespace

CheckResult check_gemm(CheckContext& context) {
  const bool gpu = context.device.kind() == DeviceKind::kCuda;
  const int64_t n = gpu ? 8192 : 256;
  const Dtype dtype = gpu ? Dtype::kBF16 : Dtype::kF32;
  Arena arena(context.device, 3 * n * n * static_cast<int64_t>(dtype_bytes(dtype)) + 3 * Arena::kAlignment);
  const Tensor a = arena.take("a", dtype, {n, n}), b = arena.take("b", dtype, {n, n}),
               out = arena.take("out", dtype, {n, n});
  fill_random(a, context.stream);
  fill_random(b, context.stream);
  const double seconds =
      best_seconds_on(context.stream, context.device, 20, [&] { gemm({.out = out, .a = a, .b = b}, context.stream); });
  const auto flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  return {.measurements = {{.part = context.part, .value = 1e-12 * flops / seconds}}};
}

// Trains the same steps twice with the same algorithms (the device keeps the autotuned choices). Memory is zeroed each
// time, because start values do not reset moments. Any difference was computed or stored wrongly.
CheckResult check_repeatable_step(CheckContext& context) {
  const std::vector<uint32_t> first = MiniTraining(context.device).train();
  const std::vector<uint32_t> second = MiniTraining(context.device).train();
  double different = 0;
  for (size_t i = 0; i < first.size(); ++i) different += std::popcount(first[i] ^ second[i]);
  return {.measurements = {{.part = context.part, .value = different}}};
}

// Compares that training between all ranks. Healthy CPUs of different models, and healthy GPUs with different autotuned
// algorithms, may differ, so each kind forms a separate group.
CheckResult check_equal_steps(CheckContext& context) {
  MiniTraining training(context.device);
  const std::vector<uint32_t> bits = training.train();
  std::string kind = cpu_kind(text_of("/proc/cpuinfo"));
  if (const auto gpu = context.device.gpu_properties())
    kind = fmt::format("{} multiprocessors", gpu->num_multiprocessors);
  if (const GemmSearch* search = context.device.gemm_search()) {
    std::string chosen;
    for (const GemmChoice& choice : search->choices().choices) chosen += choice.shape + choice.form + choice.algorithm;
    kind += " " + hex64(xxh3_64(chosen));
  }
  return {.measurements = {
              {.part = context.part, .group = kind, .text = "bits " + hex64(xxh3_64(bits.data(), 4 * bits.size()))}}};
}

}  // namespace tri
