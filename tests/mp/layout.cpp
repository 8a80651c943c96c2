#include "tests/mp/layout.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "io/base/random.h"
#include "kernels/core/dims.h"
#include "lib/engine/job_plan.h"

namespace tri {
namespace {

// Microbatch m of dp rank d holds samples (m · dp + d) · b + j of the step.
std::vector<int32_t> tokens_of(const Config& c, int64_t step, int dp_rank, int shift) {
  const int b = c.data.micro_batch, num_microbatches = microbatches(c);
  std::vector<int32_t> tokens;
  for (int m = 0; m < num_microbatches; ++m)
    for (int j = 0; j < b; ++j)
      for (int t = 0; t < c.model.seq_len; ++t) {
        const int64_t sample = step * c.data.global_batch + (int64_t{m} * c.parallel.dp + dp_rank) * b + j;
        const auto at = static_cast<uint64_t>(sample * 1000 + t + shift);
        tokens.push_back(static_cast<int32_t>(random_uniform(99, at) * random_uniform(98, at) * c.model.vocab));
      }
  return tokens;
}

std::vector<char> read_bytes(Trainer& trainer, Tensor tensor) {
  trainer.runtime().synchronize();
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  trainer.runtime().compute().copy(bytes.data(), tensor.data, tensor.bytes());
  trainer.runtime().compute().synchronize();
  return bytes;
}

// FP8 codes as the numbers that stand for.
std::vector<float> read_floats(Trainer& trainer, Tensor tensor) {
  std::vector<char> bytes = read_bytes(trainer, tensor);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  tensor.data = bytes.data();
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = is_fp8(tensor.dtype)          ? fp8_table(tensor.dtype)[fp8_codes(tensor)[i]]
                : tensor.dtype == Dtype::kF32 ? tensor.as<float>()[i]
                                              : static_cast<float>(tensor.as<bf16>()[i]);
  return values;
}

// A parameter as what GEMMs take it for.
std::vector<float> read_parameter(Trainer& trainer, const Parameter& parameter) {
  std::vector<float> values = read_floats(trainer, parameter.weight);
  if (parameter.spec.fp8_slot < 0) return values;
  const Tensor scale = trainer.engine().tensors().stage.fp8.scale();
  const float inverse = 1.0f / read_floats(trainer, scale.flat(parameter.spec.fp8_slot, 1)).front();
  for (float& value : values) value *= inverse;
  return values;
}

// Where FP8 codes are kept, they are those of this rank's master weights, with the scales that stand. A hash of all of
// them, those of other dp ranks' slices as well; 0 where there are none.
uint64_t check_codes(Trainer& trainer) {
  const std::vector<float> scales = trainer.engine().stage().fp8() == nullptr
                                        ? std::vector<float>()
                                        : read_floats(trainer, trainer.engine().tensors().stage.fp8.scale());
  const auto& chunks = trainer.store().memory().tensors().chunks;
  std::string all;
  for (const ChunkStoreTensors& chunk : chunks)
    if (!chunk.codes.empty())
      for (const char code : read_bytes(trainer, chunk.codes)) all += code;
  const auto& parameters = trainer.store().parameters();
  for (const BucketSlice& slice : trainer.store().memory().slices()) {
    if (slice.codes.out.empty()) continue;
    const BucketMemory& bucket = trainer.store().memory().buckets()[static_cast<size_t>(slice.bucket)];
    const ChunkStoreTensors& chunk = chunks[static_cast<size_t>(bucket.chunk)];
    const std::vector<float> masters = read_floats(trainer, slice.master);
    const std::vector<char> codes = read_bytes(trainer, slice.codes.out);
    size_t wrong = 0, seen = 0;
    for (const int index : bucket.bucket->parameters) {
      const Parameter& parameter = parameters[static_cast<size_t>(bucket.chunk)][static_cast<size_t>(index)];
      const int64_t first = chunk.layout.offset[static_cast<size_t>(index)] - slice.first_block * kBlock;
      const float scale = scales[static_cast<size_t>(parameter.spec.fp8_slot)];
      for (int64_t i = std::max<int64_t>(0, first); i < first + parameter.weight.numel(); ++i) {
        if (i >= slice.master.numel()) break;
        const auto at = static_cast<size_t>(i);
        wrong += static_cast<uint8_t>(codes[at]) != fp8_encode(masters[at] * scale, kE4M3Format);
        ++seen;
      }
    }
    EXPECT_EQ(wrong, 0u) << "codes of " << seen << " weights, bucket " << slice.bucket;
  }
  return all.empty() ? 0 : derive_key(1, all);
}

// Puts this rank's part of a tensor into the full one.
void place(const ParamSpec& spec, Axis tp, const std::vector<float>& part, std::vector<float>& full) {
  full.resize(static_cast<size_t>(spec.numel()));
  const int dim = std::max(spec.split_dim, 0);
  const int parts = spec.split_dim < 0 ? 1 : tp.size, index = spec.split_dim < 0 ? 0 : tp.rank;
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= spec.shape[static_cast<size_t>(d)];
  for (size_t d = static_cast<size_t>(dim) + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const int64_t split = spec.shape[static_cast<size_t>(dim)], local = split / parts;
  for (int64_t o = 0; o < outer; ++o)
    std::memcpy(full.data() + (o * split + index * local) * inner, part.data() + o * local * inner,
                static_cast<size_t>(local * inner) * sizeof(float));
}

// A tp rank's part of a parameter.
struct Share {
  std::string parameter;
  int tp_rank = 0;
  std::vector<float> values;
};
template <class Archive>
void fields(Archive& archive, Share& share) {
  archive(share.parameter, share.tp_rank, share.values);
}

// A step whose numbers are not finite, as if a device had miscalculated. What was spoilt is as before when the step's
// numbers are known and before any weight is updated.
void bad_step(Trainer& trainer, int64_t step, const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) {
  const Mesh& mesh = trainer.engine().mesh();
  Stream& compute = trainer.runtime().compute();
  const float nan = NAN;
  const bf16 short_nan(NAN);
  if (step == 0) {
    const Tensor weight = trainer.store().parameters().front().front().weight;  // no transfer fills it at the start
    const bool is_float = weight.dtype == Dtype::kF32;
    const int64_t bytes = is_float ? sizeof nan : sizeof short_nan;
    float good = 0;
    const bool mine = mesh.world_rank == mesh.world_size() - 1;
    trainer.runtime().synchronize();
    compute.copy(&good, weight.data, bytes);
    compute.synchronize();
    if (mine) compute.copy(weight.data, is_float ? static_cast<const void*>(&nan) : &short_nan, bytes);
    EXPECT_FALSE(trainer.step(step, inputs, targets, {}, [&] { compute.copy(weight.data, &good, bytes); }).finite());
  } else {
    const Tensor norm_sq =
        step_statistic(trainer.engine().tensors().step_statistics, offsetof(StepStatistics, norm_sq));
    const auto spoil = [&] { compute.copy(norm_sq.data, &nan, sizeof nan); };
    EXPECT_FALSE(trainer.step(step, inputs, targets, {}, spoil).finite());
  }
  EXPECT_TRUE(trainer.not_finite_names().empty()) << "the repetition finds whole numbers";
}

}  // namespace

Config config_of(const Layout& layout) {
  Config c;
  c.run.device = device_choice(test_device_kind());
  c.run.seed = 7;
  c.run.steps = layout.steps;
  c.run.gemm_search = false;  // the job's ranks agree on its choices; here some of them stand aside
  c.model.layers = 8;
  c.model.hidden = 32;
  c.model.heads = layout.llama ? 8 : 4;
  c.model.kv_heads = 4;
  c.model.ffn_hidden = 64;
  c.model.vocab = 200;
  c.model.seq_len = 16;
  c.model.init_std = 0.1;
  c.model.block = layout.block;
  c.model.tie_embeddings = layout.tied;
  if (layout.llama) {
    c.model.norm = Norm::kRmsNorm;
    c.model.activation = Activation::kSwiglu;
    c.model.position = Position::kRope;
    c.model.window = 7;
    c.model.bias = false;
  }
  c.data.global_batch = 8;
  c.data.micro_batch = layout.micro_batch;
  c.parallel.tp = layout.tp;
  c.parallel.pp = layout.pp;
  c.parallel.dp = layout.dp;
  c.parallel.chunks = layout.chunks;
  c.parallel.schedule = layout.schedule;
  c.parallel.zero = layout.zero;
  c.parallel.recompute = layout.recompute;
  c.parallel.bucket_elements = layout.bucket_elements;
  c.parallel.tp_transfers = c.parallel.dp_transfers = layout.transfers;
  c.parallel.pp_transfers = layout.pp_transfers;
  c.parallel.overlap_tp = c.parallel.overlap_pp = c.parallel.overlap_dp = layout.overlap;
  c.precision.compute = layout.precision;
  if (layout.wide) {
    c.model.layers = 4;
    c.model.hidden = 64;
  }
  if (layout.gemms == GemmFormat::kFp8) {
    c.precision.gemm = layout.gemms;
    c.precision.fp8_first_layers = c.precision.fp8_last_layers = layout.compute_layers;
    c.precision.fp8_gradients = layout.fp8_gradients;
    c.precision.fp8_wgrad = layout.fp8_wgrad;
    c.precision.fp8_guard = layout.fp8_guard;
  }
  c.optimizer.name = layout.optimizer;
  c.optimizer.moments = layout.moments;
  c.optimizer.clip = 0.5;
  c.optimizer.eps = 1e-6;
  c.lr.peak = 2e-3;
  c.lr.warmup_steps = 5;
  return value_or_throw(resolve_config(c, layout.ranks()));
}

namespace {

// With the plan in place of what is auto. Collective over the job where `layout.machines_count`.
Config planned_config(const Layout& layout, bool alone) {
  Config config = config_of(layout);
  if (alone || !layout.machines_count) return value_or_throw(plan_on_paper(config, layout.ranks()));
  JobFacts facts = gather_host_facts(config.run.device, *test_job());
  facts.resize(static_cast<size_t>(layout.ranks()));
  return with_plan(config, value_or_throw(plan_job(config, facts)));
}

}  // namespace

History train(const Layout& layout, bool alone, TransferObserver* observer) {
  Job& job = *test_job();
  const Config config = planned_config(layout, alone);
  History history;
  std::vector<Share> mine;
  uint64_t codes = 0;
  if (alone || job.world_rank() < layout.ranks()) {
    const Mesh mesh = make_mesh(alone ? 0 : job.world_rank(), layout.tp, layout.dp, layout.pp);
    auto device = open_test_device();
    Arena arena(*device, rank_bytes(config, mesh, *device));
    Trainer trainer({.config = config,
                     .mesh = mesh,
                     .job = alone ? nullptr : &job,
                     .device = *device,
                     .arena = arena,
                     .observer = observer});
    if (layout.split != OverlapSplit{}) {
      OverlapSplits splits;
      splits.forward.fill(layout.split);
      splits.backward.fill(layout.split);
      trainer.engine().set_overlap_splits(splits);
    }
    if (layout.timed_splits && !alone) {
      const OverlapSplits splits = timed_overlap_splits(trainer.engine());
      for (const OverlapSplits& theirs : job.all_gather(splits)) EXPECT_EQ(theirs, splits);
      EXPECT_EQ(value_or_throw(overlap_splits_of(to_text(splits), layout.tp)), splits);
      trainer.engine().set_overlap_splits(splits);
    }
    trainer.make_start_values();
    if (layout.fallen) trainer.engine().stage().fp8()->set_fallen(std::vector<bool>(4, true));
    for (int64_t step = 0; step < layout.steps; ++step) {
      if (layout.bad_steps != BadSteps::kNone && (step == 0 || step == 3)) {
        if (layout.bad_steps == BadSteps::kNotFinite)
          bad_step(trainer, step, tokens_of(config, step, mesh.dp.rank, 0), tokens_of(config, step, mesh.dp.rank, 1));
        continue;
      }
      const auto by_group = [&] {
        const CommCounts& counts = trainer.runtime().tp().collectives().group().counts();
        return counts.all_gathers + counts.reduce_scatters;
      };
      const CommCounts before = trainer.runtime().tp().counts();
      const int64_t by_group_before = by_group(), dp_before = trainer.runtime().dp().counts().bytes;
      history.steps.push_back(
          trainer.step(step, tokens_of(config, step, mesh.dp.rank, 0), tokens_of(config, step, mesh.dp.rank, 1)));
      history.tp_counts = trainer.runtime().tp().counts();
      history.tp_counts.all_gathers -= before.all_gathers;
      history.tp_counts.reduce_scatters -= before.reduce_scatters;
      history.tp_counts.bytes -= before.bytes;
      history.dp_bytes = trainer.runtime().dp().counts().bytes - dp_before;
      history.tp_collectives = by_group() - by_group_before;
    }
    codes = check_codes(trainer);
    for (const auto& chunk : trainer.store().parameters())
      for (const Parameter& parameter : chunk) {
        const std::vector<float> values = read_parameter(trainer, parameter);
        if (alone) {
          place(parameter.spec, mesh.tp, values, history.parameters[parameter.spec.name]);
        } else if (mesh.dp.first()) {
          mine.push_back({parameter.spec.name, mesh.tp.rank, values});
        }
      }
  }
  if (alone) return history;
  const std::vector<uint64_t> all_codes = job.all_gather(codes);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const Mesh mesh = make_mesh(rank, layout.tp, layout.dp, layout.pp);
    const int first = mesh.dp.first() ? rank : rank - mesh.dp.rank * layout.tp;
    EXPECT_EQ(all_codes[static_cast<size_t>(rank)], all_codes[static_cast<size_t>(first)])
        << "codes of dp rank " << mesh.dp.rank;
  }

  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : model_parameters(config)) specs[spec.name] = spec;
  for (const std::vector<Share>& shares : job.gather(mine))
    for (const Share& share : shares)
      place(specs.at(share.parameter), {share.tp_rank, layout.tp}, share.values, history.parameters[share.parameter]);
  return history;
}

double relative(double a, double b) { return std::fabs(a - b) / std::fabs(b); }

namespace {

// The same model on one rank, computed once for each model and optimizer.
const History& reference(const Layout& layout) {
  static std::map<std::string, History> known;
  Layout one = layout;
  one.dp = one.tp = one.pp = one.chunks = 1;
  one.zero = 0;
  one.schedule = Schedule::k1F1B;
  one.recompute = Recompute::kNone;
  one.overlap = true;
  one.split = {};
  one.micro_batch = 1;
  auto [entry, is_new] = known.try_emplace(one.name());
  if (is_new) entry->second = train(one, true);
  return entry->second;
}

struct Tolerance {
  double loss, grad_norm, parameters;
};
// fp32: rounding of sums in another order; parameters a tensor at a time.
// bf16: activations round at other places, 8 bits of mantissa; parameters all together, because gradients that are zero
// but for rounding (a key's bias moves no softmax) are noise there, and Adam scales noise up to full steps.
// bf16 moments: all layouts draw the same, so that losses agree as in fp32; a moment beside a border falls to either
// side of it, which shows where gradients are zero but for rounding, and in the gradients' norm.
// fp8: a number beside a border of rounding falls to either side of it, which is up to 1/16 of it.
Tolerance tolerance_of(const Layout& layout) {
  if (layout.gemms == GemmFormat::kFp8) return Tolerance{5e-3, 1e-1, 5e-2};
  if (layout.precision != Dtype::kF32) return Tolerance{5e-3, 5e-2, 2e-2};
  return layout.moments == Dtype::kF32 ? Tolerance{1e-5, 1e-5, 1e-4} : Tolerance{1e-5, 1e-4, 2e-3};
}

}  // namespace

void expect_like_one_rank(const Layout& layout) {
  const Tolerance allowed = tolerance_of(layout);
  const History history = train(layout, false);
  if (test_job()->world_rank() == 0) {
    const History& expected = reference(layout);
    double worst_loss = 0, worst_norm = 0, worst_parameter = 0, all_difference = 0, all_size = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto s = static_cast<size_t>(step);
      worst_loss = std::max(worst_loss, relative(history.steps[s].loss, expected.steps[s].loss));
      worst_norm = std::max(worst_norm, relative(history.steps[s].grad_norm, expected.steps[s].grad_norm));
    }
    ASSERT_EQ(history.parameters.size(), expected.parameters.size());
    for (const auto& [name, values] : expected.parameters) {
      ASSERT_TRUE(history.parameters.count(name)) << name;
      const std::vector<float>& mine = history.parameters.at(name);
      double difference = 0, size = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        difference += (mine[i] - values[i]) * (mine[i] - values[i]);
        size += values[i] * values[i];
      }
      worst_parameter = std::max(worst_parameter, std::sqrt(difference / std::max(size, 1e-12)));
      all_difference += difference;
      all_size += size;
    }
    if (layout.precision != Dtype::kF32 || layout.gemms == GemmFormat::kFp8)
      worst_parameter = std::sqrt(all_difference / all_size);
    fmt::print("{:<100} loss {:.1e}  norm {:.1e}  parameters {:.1e}\n", layout.name(), worst_loss, worst_norm,
               worst_parameter);
    std::fflush(stdout);
    EXPECT_LE(worst_loss, allowed.loss) << layout.name();
    EXPECT_LE(worst_norm, allowed.grad_norm) << layout.name();
    EXPECT_LE(worst_parameter, allowed.parameters) << layout.name();
    EXPECT_LT(history.steps.back().loss, history.steps.front().loss) << "does not learn";
  }
  test_job()->barrier();
}

void expect_bit_identical(const History& a, const History& b, const std::string& what) {
  if (test_job()->world_rank() != 0) return;
  for (size_t step = 0; step < a.steps.size(); ++step) {
    EXPECT_EQ(a.steps[step].loss, b.steps[step].loss) << what << ", step " << step;
    EXPECT_EQ(a.steps[step].grad_norm, b.steps[step].grad_norm) << what << ", step " << step;
  }
  EXPECT_EQ(a.parameters, b.parameters) << what;
}

std::vector<Layout> that_fit(std::vector<Layout> layouts) {
  for (Layout& layout : layouts)
    for (int* axis : {&layout.dp, &layout.tp})
      if (layout.ranks() > test_job()->world_size()) *axis = 1;
  std::erase_if(layouts, [](const Layout& layout) { return layout.ranks() > test_job()->world_size(); });
  return layouts;
}

}  // namespace tri
