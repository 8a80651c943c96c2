#include "tests/mp/layout.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "io/base/random.h"
#include "kernels/core/dims.h"
#include "kernels/core/qkv_row.h"
#include "kernels/no_target.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/model/parameter_names.h"
#include "lib/parallel/sequence_chunks.h"

namespace tri {

// Ranks send these fields of a training to each other.
template <class Archive>
void fields(Archive& archive, StepResult& step) {
  archive(step.loss, step.grad_norm);
}
template <class Archive>
void fields(Archive& archive, History& history) {
  archive(history.steps, history.parameters);
}

namespace {

// Microbatch m of dp rank d contains samples (m · dp + d) · b + j of the step, of which each cp rank holds two chunks.
std::vector<int32_t> tokens_of(const Config& c, int64_t step, const Mesh& mesh, int shift, int first_sample = 0) {
  const int dp_rank = mesh.axis("dp").rank, cp = c.parallel.cp, cp_rank = mesh.axis("cp").rank;
  const int b = c.data.micro_batch, num_microbatches = microbatches(c);
  std::vector<int32_t> tokens;
  for (int m = 0; m < num_microbatches; ++m)
    for (int j = 0; j < b; ++j)
      for (int t = 0; t < c.model.seq_len; ++t) {
        const int chunk = t * 2 * cp / c.model.seq_len;
        if (chunk != cp_rank && chunk != 2 * cp - 1 - cp_rank) continue;
        const int64_t of_step = (int64_t{m} * c.parallel.dp + dp_rank) * b + j + first_sample;
        const int64_t sample = step * c.data.global_batch + of_step % c.data.global_batch;
        const auto at = static_cast<uint64_t>(sample * 1000 + t + shift);
        tokens.push_back(static_cast<int32_t>(random_uniform(99, at) * random_uniform(98, at) * c.model.vocab));
      }
  return tokens;
}

// Returns where the documents of a dp rank's samples start, each of about four tokens.
std::vector<int32_t> document_starts_of(const Config& c, int64_t step, int dp_rank, int first_sample) {
  const int b = c.data.micro_batch, length = c.model.seq_len;
  std::vector<int32_t> starts;
  for (int n = 0; n < microbatches(c) * b; ++n) {
    const int64_t of_step = (int64_t{n / b} * c.parallel.dp + dp_rank) * b + n % b + first_sample;
    const int64_t sample = step * c.data.global_batch + of_step % c.data.global_batch;
    for (int t = 0, start = 0; t < length; ++t) {
      if (random_uniform(96, static_cast<uint64_t>(sample * 1000 + t)) < 0.25) start = t;
      starts.push_back(start);
    }
  }
  return starts;
}

// Returns whether Layout::masked masks the target at position t of a sample of the run.
bool is_masked(int64_t sample, int t) {
  const double share = static_cast<double>(sample % 4) / 3;  // none, a third, two thirds, all
  return random_uniform(97, static_cast<uint64_t>(sample * 1000 + t)) < share;
}

// Returns how many targets the masks leave in the global batch of a step.
int64_t targets_of(const Config& c, int64_t step) {
  int64_t targets = 0;
  for (int n = 0; n < c.data.global_batch; ++n)
    for (int t = 0; t < c.model.seq_len; ++t) targets += !is_masked(step * c.data.global_batch + n, t);
  return targets;
}

// Masks a rank's targets, which are in the order of tokens_of.
void mask(const Config& c, int64_t step, const Mesh& mesh, int first_sample, std::vector<int32_t>& targets) {
  const SequenceChunks chunks{c.model.seq_len, mesh.axis("cp")};
  const int b = c.data.micro_batch;
  for (int64_t n = 0; n * chunks.local_len() < std::ssize(targets); ++n) {
    const int64_t of_step = (n / b * c.parallel.dp + mesh.axis("dp").rank) * b + n % b + first_sample;
    const int64_t sample = step * c.data.global_batch + of_step % c.data.global_batch;
    for (const SequencePiece& piece : chunks.pieces())
      for (int64_t i = 0; i < piece.count; ++i)
        if (is_masked(sample, static_cast<int>(piece.global + i)))
          targets[static_cast<size_t>(n * chunks.local_len() + piece.local + i)] = kNoTarget;
  }
}

std::vector<char> read_bytes(Trainer& trainer, Tensor tensor) {
  trainer.runtime().synchronize();
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  trainer.runtime().compute().copy(bytes.data(), tensor.data, tensor.bytes());
  trainer.runtime().compute().synchronize();
  return bytes;
}

// Returns the elements of a tensor; FP8 weights as the numbers that their bits encode.
std::vector<float> read_floats(Trainer& trainer, Tensor tensor) {
  std::vector<char> bytes = read_bytes(trainer, tensor);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  tensor.data = bytes.data();
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = is_fp8(tensor.dtype)          ? fp8_table(tensor.dtype)[fp8_bytes(tensor)[i]]
                : tensor.dtype == Dtype::kF32 ? tensor.as<float>()[i]
                                              : static_cast<float>(tensor.as<bf16>()[i]);
  return values;
}

// Returns a parameter as GEMMs use it.
std::vector<float> read_parameter(Trainer& trainer, const Parameter& parameter) {
  std::vector<float> values = read_floats(trainer, parameter.weight);
  if (parameter.spec.fp8_slot < 0) return values;
  const Tensor scale = trainer.engine().tensors().stage.fp8.scale();
  const float inverse = 1.0f / read_floats(trainer, scale.flat(parameter.spec.fp8_slot, 1)).front();
  for (float& value : values) value *= inverse;
  return values;
}

// Checks that stored FP8 weights are this rank's master weights quantized with the current scales. Returns a hash of
// all of them that dp ranks share, including other dp ranks' slices; 0 if there are none.
uint64_t check_quantized_weights(Trainer& trainer) {
  const std::vector<float> scales = trainer.engine().stage().fp8() == nullptr
                                        ? std::vector<float>()
                                        : read_floats(trainer, trainer.engine().tensors().stage.fp8.scale());
  const auto& chunks = trainer.store().memory.tensors().chunks;
  std::string all;
  const auto& parameters = trainer.store().memory.parameters();
  for (const auto& of_chunk : parameters)
    for (const Parameter& parameter : of_chunk)
      if (parameter.spec.fp8_slot >= 0 && !parameter.spec.experts)
        for (const char code : read_bytes(trainer, parameter.weight)) all += code;
  for (const BucketSlice& slice : trainer.store().memory.slices()) {
    if (slice.quantized.out.empty()) continue;
    const BucketMemory& bucket = trainer.store().memory.buckets()[static_cast<size_t>(slice.bucket)];
    const ChunkStoreTensors& chunk = chunks[static_cast<size_t>(bucket.chunk)];
    const std::vector<float> masters = read_floats(trainer, slice.master);
    const std::vector<char> quantized = read_bytes(trainer, slice.quantized.out);
    size_t wrong = 0, seen = 0;
    for (const int index : bucket.bucket->parameters) {
      const Parameter& parameter = parameters[static_cast<size_t>(bucket.chunk)][static_cast<size_t>(index)];
      const int64_t first = chunk.layout.offset[static_cast<size_t>(index)] - slice.first_block * kBlock;
      const float scale = scales[static_cast<size_t>(parameter.spec.fp8_slot)];
      for (int64_t i = std::max<int64_t>(0, first); i < first + parameter.weight.numel(); ++i) {
        if (i >= slice.master.numel()) break;
        const auto at = static_cast<size_t>(i);
        wrong += static_cast<uint8_t>(quantized[at]) != fp8_encode(masters[at] * scale, kE4M3Format);
        ++seen;
      }
    }
    EXPECT_EQ(wrong, 0u) << "quantized values of " << seen << " weights, bucket " << slice.bucket;
  }
  return all.empty() ? 0 : derive_key(1, all);
}

// Copies this rank's part of a tensor into the full one.
void place(const ParamSpec& spec, Axis shard, const std::vector<float>& part, std::vector<float>& full) {
  full.resize(static_cast<size_t>(spec.numel()));
  const int dim = std::max(spec.split_dim, 0);
  const int parts = spec.split_dim < 0 ? 1 : shard.size, index = spec.split_dim < 0 ? 0 : shard.rank;
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= spec.shape[static_cast<size_t>(d)];
  for (size_t d = static_cast<size_t>(dim) + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const int64_t split = spec.shape[static_cast<size_t>(dim)], local = split / parts;
  for (int64_t o = 0; o < outer; ++o)
    std::memcpy(full.data() + (o * split + index * local) * inner, part.data() + o * local * inner,
                static_cast<size_t>(local * inner) * sizeof(float));
}

// A rank's part of a parameter.
struct Share {
  std::string parameter;
  int shard = 0, shards = 1;
  std::vector<float> values;
};
template <class Archive>
void fields(Archive& archive, Share& share) {
  archive(share.parameter, share.shard, share.shards, share.values);
}

// Runs a step whose numbers are not finite, as if a device had miscalculated. The damaged values are restored once the
// step's numbers are known and before any weight is updated.
void bad_step(Trainer& trainer, int64_t step, const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) {
  const Mesh& mesh = trainer.engine().mesh();
  Stream& compute = trainer.runtime().compute();
  const float nan = NAN;
  const bf16 short_nan(NAN);
  if (step == 0) {
    const Tensor weight =
        trainer.store().memory.parameters().front().front().weight;  // no transfer fills it at the start
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

QkvRow row_of(const ModelConfig& model) {
  return qkv_row(QkvOrder::kGrouped, model.kv_heads, model.heads / model.kv_heads, model.head_dim);
}

// Splits the sums of the GEMMs of `layout`'s training, which must not be in use.
class SplitSums {
 public:
  SplitSums(const Layout& layout, Trainer& trainer) {
    GemmSums sums{.parts = layout.sum_parts, .fault = layout.fault, .row = row_of(config_of(layout).model)};
    const ParameterMemory& memory = trainer.store().memory;
    for (const Parameter& parameter : memory.parameters().front()) {
      if (layout.fault == GemmFault::kNone || !parameter.spec.name.starts_with("layers/1/")) continue;
      const Tensor gradients = memory.buckets()[static_cast<size_t>(memory.bucket_of(parameter))].gradients;
      const Tensor gradient = memory.gradient_in(gradients, parameter);
      sums.faulty_calls[gradient.data] = 0;
      if (parameter.spec.name == bias_of(modules::kQkv, 1)) sums.faulty_bias = gradient.data;
    }
    trainer.runtime().synchronize();
    set_gemm_sums(sums);
  }
  ~SplitSums() { set_gemm_sums({}); }
  SplitSums(const SplitSums&) = delete;
  SplitSums& operator=(const SplitSums&) = delete;
};

}  // namespace

Config config_of(const Layout& layout) {
  Config c;
  c.run = {.seed = 7, .steps = layout.steps, .device = device_choice(layout.device)};
  c.run.gemm_search = false;  // the job's ranks agree on its choices, but some of them do not take part here
  c.model.layers = 8;
  c.model.hidden = 32;
  c.model.heads = layout.llama ? 8 : 4;
  c.model.kv_heads = 4;
  c.model.head_dim = layout.llama ? 8 : 0;  // twice the default, 32 / 8
  c.model.ffn_hidden = 64;
  c.model.vocab = 200;
  c.model.seq_len = layout.seq_len;
  c.model.init_std = 0.1;
  c.model.block = layout.block;
  c.model.tie_embeddings = layout.tied;
  if (layout.llama) {
    c.model.norm = Norm::kRmsNorm;
    c.model.activation = Activation::kSwiglu;
    c.model.position = Position::kRope;
    c.model.qk_norm = layout.qkv_bias ? QkNorm::kNone : QkNorm::kHead;
    c.model.window = 7;
    c.model.bias = false;
    if (layout.qkv_bias) c.model.qkv_bias = AutoFlag::kTrue;
    c.model.rope_scaling = layout.rope_scaling;
    if (layout.olmo2) {
      c.model.norm_position = NormPosition::kPost;
      c.model.qk_norm = QkNorm::kFull;
    }
  }
  if (layout.neox) {
    c.model.activation = Activation::kGeluErf;
    c.model.position = Position::kRope;
    c.model.rope_fraction = 0.5;
    if (layout.block == Block::kParallel) c.model.parallel_norms = 2;
  }
  if (layout.gemma) {  // of a layer's softcaps the first bounds scores of about 1, the second logits of about 2
    c.model.activation = Activation::kGeglu;
    c.model.norm_position = NormPosition::kBoth;
    c.model.norm_offset = 1;
    c.model.attention_scale = 0.5;
    c.model.attention_softcap = 1.5;
    c.model.logit_softcap = 3;
    c.model.embedding_scale = 5.656854249492381;  // the root of 32
    c.model.layer_pattern = {LayerAttention::kWindow, LayerAttention::kWindow, LayerAttention::kFull};
    c.model.rope_theta_local = 100;
  }
  if (layout.moe) {
    c.model.experts = 8;
    c.model.experts_per_token = 2;
    c.model.expert_hidden = 32;
    c.model.shared_experts = 1;
    c.model.dense_layers = 2;
    c.model.aux_loss = 0.05;
    c.model.router_z_loss = 0.01;
    if (layout.sigmoid) {
      c.model.router = Router::kSigmoid;
      c.model.router_groups = 4;
      c.model.router_top_groups = 2;
      c.model.router_scale = 2.5;
      c.model.router_bias_rate = 0.01;
    }
    c.parallel.ep = layout.ep;
    c.parallel.ep_capacity = layout.ep_capacity;
    c.parallel.ep_transfers = layout.ep_transfers;
  }
  if (layout.rope_scaling != RopeScaling::kNone) {  // of four pairs, one is kept, two are divided, one is in between
    c.model.rope_factor = 4;
    c.model.rope_original_seq_len = 8;
    c.model.rope_low_freq_factor = 0.1;
    c.model.rope_high_freq_factor = 1;
    c.model.rope_beta_fast = 1;
    c.model.rope_beta_slow = 0.1;
  }
  c.data.global_batch = 8;
  c.data.micro_batch = layout.micro_batch;
  c.data.document_mask = layout.documents;
  c.parallel.tp = layout.tp;
  c.parallel.cp = layout.cp;
  c.cluster.ranks_per_node = layout.ranks_per_node;
  c.parallel.pp = layout.pp;
  c.parallel.dp = layout.dp;
  c.parallel.chunks = layout.chunks;
  c.parallel.schedule = layout.schedule;
  c.parallel.layers_per_chunk = layout.layers;
  c.parallel.zero = layout.zero;
  c.parallel.recompute = layout.recompute;
  c.parallel.bucket_elements = layout.bucket_elements;
  c.parallel.tp_transfers = c.parallel.dp_transfers = layout.transfers;
  c.parallel.pp_transfers = layout.pp_transfers;
  c.parallel.overlap_tp = c.parallel.overlap_cp = c.parallel.overlap_pp = c.parallel.overlap_dp = layout.overlap;
  c.parallel.overlap_update = layout.overlap;
  c.precision.compute = layout.precision;
  if (layout.wide) {
    c.model.layers = 4;
    c.model.hidden = 64;
  }
  if (layout.gemms == GemmFormat::kFp8) {
    c.precision.gemm = layout.gemms;
    c.precision.fp8_first_layers = c.precision.fp8_last_layers = layout.compute_layers;
    c.precision.fp8_gradients = layout.fp8_gradients;
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

// Returns the config with the plan's values instead of auto. Collective over the job if `layout.machines_count`.
Config planned_config(const Layout& layout, bool alone) {
  Config config = config_of(layout);
  if (alone || !layout.machines_count) return value_or_throw(plan_on_paper(config, layout.ranks()));
  JobFacts facts = gather_host_facts(config.run.device, *test_job());
  facts.resize(static_cast<size_t>(layout.ranks()));
  return with_plan(config, value_or_throw(plan_job(config, facts)));
}

}  // namespace

History train(const Layout& layout, bool alone) {
  Job& job = *test_job();
  const Config config = planned_config(layout, alone);
  History history;
  std::vector<Share> mine;
  uint64_t quantized = 0;
  if (alone || job.world_rank() < layout.ranks()) {
    const Mesh mesh = mesh_of(config, alone ? 0 : job.world_rank());
    auto device =
        layout.device == DeviceKind::kCpu ? value_or_throw(open_device(DeviceKind::kCpu, 0)) : open_test_device();
    Arena arena(*device, rank_bytes(config, mesh, *device));
    Trainer trainer({.config = config, .mesh = mesh, .job = alone ? nullptr : &job, .device = *device, .arena = arena},
                    {.update = UpdateEnd::kNextStep});
    if (layout.split != OverlapSplit{}) {
      OverlapSplits splits;
      for (auto* const pass : {&splits.forward, &splits.backward})
        for (auto& branch : *pass) branch.fill(layout.split);
      trainer.engine().set_overlap_splits(splits);
    }
    if (layout.timed_splits && !alone) {
      const OverlapSplits splits = timed_overlap_splits(trainer.engine());
      for (const OverlapSplits& other : job.all_gather(splits)) EXPECT_EQ(other, splits);
      trainer.engine().set_overlap_splits(splits);
    }
    trainer.make_start_values();
    if (layout.loads_kernels || trainer.must_load_kernels()) trainer.load_kernels();
    const SplitSums sums(layout, trainer);
    for (int64_t step = 0; step < layout.steps; ++step) {
      if (layout.bad_steps != BadSteps::kNone && (step == 0 || step == 3)) {
        if (layout.bad_steps == BadSteps::kNotFinite)
          bad_step(trainer, step, tokens_of(config, step, mesh, 0), tokens_of(config, step, mesh, 1));
        continue;
      }
      const auto by_group = [&] {
        const CommCounts& counts = trainer.runtime().tp().collectives().group().counts();
        return counts.all_gathers + counts.reduce_scatters;
      };
      const CommCounts before = trainer.runtime().tp().counts();
      const int64_t by_group_before = by_group(), dp_before = trainer.runtime().dp().counts().bytes;
      const int first_sample = layout.first_sample;
      std::vector<int32_t> inputs = tokens_of(config, step, mesh, 0, first_sample);
      if (layout.collapsed) std::ranges::fill(inputs, 1);
      std::vector<int32_t> targets = tokens_of(config, step, mesh, 1, first_sample);
      StepPlace place{.step = step, .first_sample = step * config.data.global_batch};
      if (layout.masked) {
        mask(config, step, mesh, first_sample, targets);
        place.targets = targets_of(config, step);
      }
      std::vector<int32_t> starts;
      if (layout.documents) starts = document_starts_of(config, step, mesh.axis("dp").rank, first_sample);
      place.document_starts = starts;
      history.steps.push_back(trainer.step(place, inputs, targets));
      history.tp_counts = trainer.runtime().tp().counts();
      history.tp_counts.all_gathers -= before.all_gathers;
      history.tp_counts.reduce_scatters -= before.reduce_scatters;
      history.tp_counts.bytes -= before.bytes;
      history.dp_bytes = trainer.runtime().dp().counts().bytes - dp_before;
      history.tp_collectives = by_group() - by_group_before;
    }
    quantized = check_quantized_weights(trainer);
    for (const auto& chunk : trainer.store().memory.parameters())
      for (const Parameter& parameter : chunk) {
        const std::vector<float> values = read_parameter(trainer, parameter);
        if (alone) {
          place(parameter.spec, mesh.axis("tp"), values, history.parameters[parameter.spec.name]);
        } else if (parameter.spec.experts ? mesh.axis("edp").first() : mesh.joint_axis(kTokenAxes).first()) {
          const Axis shard = parameter.spec.shard(mesh);
          mine.push_back({parameter.spec.name, shard.rank, shard.size, values});
        }
      }
  }
  if (alone) return history;
  const std::vector<uint64_t> all_hashes = job.all_gather(quantized);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const Mesh mesh = make_mesh(rank, {{"tp", layout.tp}, {"cp", layout.cp}, {"dp", layout.dp}, {"pp", layout.pp}});
    const int first = mesh.group(kTokenAxes).front();
    EXPECT_EQ(all_hashes[static_cast<size_t>(rank)], all_hashes[static_cast<size_t>(first)])
        << "quantized values of " << mesh.place();
  }

  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : model_parameters(config)) specs[spec.name] = spec;
  for (const std::vector<Share>& shares : job.gather(mine))
    for (const Share& share : shares)
      place(specs.at(share.parameter), {share.shard, share.shards}, share.values, history.parameters[share.parameter]);
  return history;
}

double relative(double a, double b) { return std::fabs(a - b) / std::fabs(b); }

namespace {

bool rounds_to_less_than_fp32(const Layout& layout) {
  return layout.precision != Dtype::kF32 || layout.moments != Dtype::kF32 || layout.gemms == GemmFormat::kFp8;
}

// Whether biases of keys have no effect: a bias adds the same number to all scores of a query, which softmax ignores.
// RoPE rotates keys by their positions, and the bias with them, as far as it rotates a head.
bool key_biases_have_no_effect(const ModelConfig& model) {
  return has_qkv_bias(model) && (model.position != Position::kRope || model.rope_fraction < 1);
}

}  // namespace

Deviation deviation(const Layout& layout, const History& history, const History& from) {
  Deviation found;
  for (size_t s = 0; s < from.steps.size(); ++s) {
    found.loss.push_back(relative(history.steps[s].loss, from.steps[s].loss));
    found.grad_norm.push_back(relative(history.steps[s].grad_norm, from.steps[s].grad_norm));
  }
  const ModelConfig& model = config_of(layout).model;
  const bool skips_keys = rounds_to_less_than_fp32(layout) && key_biases_have_no_effect(model);
  const QkvRow row = row_of(model);
  EXPECT_EQ(history.parameters.size(), from.parameters.size());
  for (const auto& [name, values] : from.parameters) {
    const auto mine = history.parameters.find(name);
    if (mine == history.parameters.end() || mine->second.size() != values.size()) {
      ADD_FAILURE() << name << " is missing or has another size";
      continue;
    }
    const bool has_keys = skips_keys && name.ends_with("/attention/qkv/bias");
    double difference = 0, size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int at = static_cast<int>(i) % row.key_stride;
      if (has_keys && at >= row.key_at && at < row.value_at) continue;
      difference += std::pow(double{mine->second[i]} - values[i], 2);
      size += std::pow(double{values[i]}, 2);
    }
    found.parameters[name] = std::sqrt(difference / std::max(size, 1e-12));
  }
  return found;
}

namespace {

Layout one_rank(const Layout& layout) {
  Layout one = layout;
  one.dp = one.tp = one.cp = one.pp = one.chunks = one.ep = 1;
  one.zero = 0;
  one.schedule = Schedule::k1F1B;
  one.layers = "even";
  one.recompute = Recompute::kNone;
  one.overlap = true;
  one.split = {};
  one.micro_batch = 1;
  one.sum_parts = 1;
  one.fault = GemmFault::kNone;
  one.first_sample = 0;
  one.ranks_per_node = 8;
  return one;
}

}  // namespace

ReorderedRuns reordered(const Layout& layout) {
  struct Variant {
    int sum_parts, micro_batch, first_sample;
  };
  static constexpr Variant kVariants[] = {{2, 1, 0}, {3, 1, 1}, {4, 2, 0}, {5, 1, 2}, {6, 4, 3}, {8, 1, 5}};
  ReorderedRuns runs{.from = one_rank(layout), .others = {}};
  runs.from.device = DeviceKind::kCpu;
  for (const Variant& variant : kVariants) {
    Layout& other = runs.others.emplace_back(runs.from);
    other.sum_parts = variant.sum_parts;
    other.micro_batch = variant.micro_batch;
    other.first_sample = variant.first_sample;
  }
  return runs;
}

namespace {

// Returns root mean squares over `others` of their deviations from `from`; for steps the largest up to each step, since
// runs that have diverged do not converge again. kRare: few numbers round differently, and one run may have now what
// another has a few steps later; later steps are not used, since training amplifies deviations.
enum class Rounding { kMany, kRare };
Deviation spread(const Layout& layout, const std::vector<History>& others, const History& from, Rounding rounding) {
  Deviation squares;
  const auto add = [&](double& sum, double value) { sum += value * value / static_cast<double>(others.size()); };
  for (const History& other : others) {
    const Deviation found = deviation(layout, other, from);
    squares.loss.resize(found.loss.size());
    squares.grad_norm.resize(found.grad_norm.size());
    for (size_t s = 0; s < found.loss.size(); ++s) {
      add(squares.loss[s], found.loss[s]);
      add(squares.grad_norm[s], found.grad_norm[s]);
    }
    for (const auto& [name, value] : found.parameters) add(squares.parameters[name], value);
  }
  constexpr size_t kStepsAhead = 4;
  for (std::vector<double>* steps : {&squares.loss, &squares.grad_norm}) {
    double most = 0;
    for (double& square : *steps) square = most = std::max(most, std::sqrt(square));
    if (rounding == Rounding::kRare)
      for (size_t s = 0; s < steps->size(); ++s) (*steps)[s] = (*steps)[std::min(s + kStepsAhead, steps->size() - 1)];
  }
  for (auto& [name, square] : squares.parameters) square = std::sqrt(square);
  return squares;
}

// Computed once per model and optimizer. The job's ranks train the runs for a spread concurrently.
struct OneRankRuns {
  History reference;  // on rank 0
  Deviation spread;   // on rank 0; empty for fp32
};

const OneRankRuns& one_rank_runs(const Layout& layout) {
  static std::map<std::string, OneRankRuns> known;
  const Layout one = one_rank(layout);
  const auto [entry, is_new] = known.try_emplace(one.name());
  OneRankRuns& runs = entry->second;
  if (!is_new) return runs;
  Job& job = *test_job();
  const auto mine = [&](size_t index) { return static_cast<int>(index) % job.world_size() == job.world_rank(); };
  if (job.world_rank() == 0) runs.reference = train(one, true);
  if (!rounds_to_less_than_fp32(one)) return runs;

  const auto [on_cpu, variants] = reordered(layout);
  std::vector<History> trained;
  for (size_t i = 0; i < variants.size(); ++i)
    if (mine(i + 1)) trained.push_back(train(variants[i], true));
  std::vector<History> others;
  for (std::vector<History>& histories : job.gather(trained))
    for (History& history : histories) others.push_back(std::move(history));
  if (job.world_rank() != 0) return runs;
  EXPECT_EQ(others.size(), variants.size());
  const bool many = one.precision != Dtype::kF32;
  runs.spread = spread(one, others, one.device == DeviceKind::kCpu ? runs.reference : train(on_cpu, true),
                       many ? Rounding::kMany : Rounding::kRare);
  return runs;
}

}  // namespace

const History& reference(const Layout& layout) { return one_rank_runs(layout).reference; }

namespace {

// For fp32 and for differences only in the order of sums; parameters are compared per tensor.
constexpr double kFp32Steps = 1e-5, kFp32Parameters = 1e-4;
// A norm of a branch's output divides by its root mean square, which is far below 1 at first, so it magnifies rounding.
// Muon's iterations see the same matrices in any layout.
double fp32_steps(const Layout& layout) {
  if (layout.olmo2 || layout.gemma) return 5 * kFp32Steps;
  return layout.optimizer == OptimizerKind::kMuon && layout.moments == Dtype::kF32 ? 1e-6 : kFp32Steps;
}
// For parameters or moments in bf16: each number may be one rounding off, which few of the runs need to show.
constexpr double kBf16Parameters = 0x1p-8;
// A tensor that is off by half of its norm is wrong, whatever the spread.
constexpr double kMostOfParameters = 0.5;
// Returns how many spreads a layout may differ from the reference. If FP8 rounds fp32 numbers, the spread is that of
// later steps (Rounding::kRare), which is already large.
double spreads_of(const Layout& layout) {
  return layout.gemms == GemmFormat::kFp8 && layout.precision == Dtype::kF32 ? 5 : 10;
}

struct Worst {
  double value = 0, share = 0;  // the largest deviation; the largest share of a bound
  std::string where;
};

Worst worst_of(const std::vector<double>& found, const std::vector<double>& spread, double spreads, double fp32) {
  Worst worst;
  for (size_t s = 0; s < found.size(); ++s) {
    const double bound = std::max(fp32, spread.empty() ? 0.0 : spreads * spread[s]);
    const double share = std::isfinite(found[s]) ? found[s] / bound : INFINITY;
    worst.value = std::max(worst.value, found[s]);
    if (share > worst.share) {
      worst.share = share;
      worst.where = fmt::format("of step {} is {:.2e} off, the bound is {:.2e}", s, found[s], bound);
    }
  }
  return worst;
}

Worst worst_of(const std::map<std::string, double>& found, const std::map<std::string, double>& spread,
               double spreads) {
  Worst worst;
  for (const auto& [name, value] : found) {
    const double bound = spread.empty()
                             ? kFp32Parameters
                             : std::min(kMostOfParameters, std::max(kBf16Parameters, spreads * spread.at(name)));
    const double share = std::isfinite(value) ? value / bound : INFINITY;
    worst.value = std::max(worst.value, value);
    if (share > worst.share) {
      worst.share = share;
      worst.where = fmt::format("{} is {:.2e} off, the bound is {:.2e}", name, value, bound);
    }
  }
  return worst;
}

}  // namespace

std::string beyond_bounds(const Layout& layout, const Deviation& found) {
  const Deviation& spread = one_rank_runs(layout).spread;
  if (test_job()->world_rank() != 0) return "";
  const double spreads = spreads_of(layout);
  const Worst loss = worst_of(found.loss, spread.loss, spreads, fp32_steps(layout)),
              norm = worst_of(found.grad_norm, spread.grad_norm, spreads, fp32_steps(layout)),
              parameters = worst_of(found.parameters, spread.parameters, spreads);
  fmt::print("{:<100} loss {:.1e} ({:.2f})  norm {:.1e} ({:.2f})  parameters {:.1e} ({:.2f})\n", layout.name(),
             loss.value, loss.share, norm.value, norm.share, parameters.value, parameters.share);
  std::fflush(stdout);
  std::string beyond;
  if (loss.share > 1) beyond += "the loss " + loss.where + "; ";
  if (norm.share > 1) beyond += "the gradient norm " + norm.where + "; ";
  if (parameters.share > 1) beyond += "parameters: " + parameters.where + "; ";
  return beyond;
}

void expect_like_one_rank(const Layout& layout) {
  const History history = train(layout, false);
  const History& expected = reference(layout);
  Deviation found;
  if (test_job()->world_rank() == 0) {
    found = deviation(layout, history, expected);
    EXPECT_LT(history.steps.back().loss, history.steps.front().loss) << "does not learn";
  }
  EXPECT_EQ(beyond_bounds(layout, found), "") << layout.name();
  test_job()->barrier();
}

void expect_faults_are_found(const Layout& layout) {
  const History& expected = reference(layout);
  for (const GemmFault fault : {GemmFault::kMissesEverySecond, GemmFault::kTwice, GemmFault::kKeysTakeValues}) {
    const bool of_keys = fault == GemmFault::kKeysTakeValues;
    if (of_keys && (rounds_to_less_than_fp32(layout) || !has_qkv_bias(config_of(layout).model))) continue;
    Layout faulty = one_rank(layout);
    faulty.fault = fault;
    Deviation found;
    if (test_job()->world_rank() == 0) found = deviation(layout, train(faulty, true), expected);
    const std::string beyond = beyond_bounds(layout, found);
    if (test_job()->world_rank() == 0) {
      EXPECT_NE(beyond, "") << layout.name() << ", fault " << static_cast<int>(fault);
      if (of_keys) {
        EXPECT_NE(beyond.find("attention/qkv/bias"), std::string::npos) << layout.name() << ": " << beyond;
      }
    }
  }
}

void expect_bit_identical(const History& a, const History& b, const std::string& what) {
  if (test_job()->world_rank() != 0) return;
  for (size_t step = 0; step < a.steps.size(); ++step) {
    EXPECT_EQ(a.steps[step].loss, b.steps[step].loss) << what << ", step " << step;
    EXPECT_EQ(a.steps[step].grad_norm, b.steps[step].grad_norm) << what << ", step " << step;
  }
  EXPECT_EQ(a.parameters, b.parameters) << what;
}

void expect_loading_changes_no_bit(Layout layout) {
  layout.steps = 6;
  const History plain = train(layout, false);
  layout.loads_kernels = true;
  const History loaded = train(layout, false);
  expect_bit_identical(loaded, plain, layout.name());
  ASSERT_EQ(loaded.steps.size(), plain.steps.size());
  for (size_t step = 0; step < plain.steps.size(); ++step) {
    const StepResult &a = loaded.steps[step], &b = plain.steps[step];
    ASSERT_EQ(a.fp8.size(), b.fp8.size());
    for (size_t slot = 0; slot < a.fp8.size(); ++slot) {
      EXPECT_EQ(a.fp8[slot].scale, b.fp8[slot].scale) << layout.name() << ", step " << step << ", slot " << slot;
      EXPECT_EQ(a.fp8[slot].amax, b.fp8[slot].amax) << layout.name() << ", step " << step << ", slot " << slot;
      EXPECT_EQ(a.fp8[slot].elements, b.fp8[slot].elements) << layout.name() << ", step " << step << ", slot " << slot;
      EXPECT_EQ(a.fp8[slot].saturated, b.fp8[slot].saturated) << layout.name() << ", step " << step;
      EXPECT_EQ(a.fp8[slot].underflowed, b.fp8[slot].underflowed) << layout.name() << ", step " << step;
    }
    ASSERT_EQ(a.routers.size(), b.routers.size());
    for (size_t layer = 0; layer < a.routers.size(); ++layer) {
      EXPECT_EQ(a.routers[layer].load, b.routers[layer].load) << layout.name() << ", step " << step;
      EXPECT_EQ(a.routers[layer].aux_loss, b.routers[layer].aux_loss) << layout.name() << ", step " << step;
      EXPECT_EQ(a.routers[layer].z_loss, b.routers[layer].z_loss) << layout.name() << ", step " << step;
    }
  }
}

Layout on_test_device(Layout layout) {
  if (test_device_kind() != DeviceKind::kCpu && layout.cp > 1) layout.seq_len = 256 * layout.cp;
  return layout;
}

std::vector<Layout> that_fit(std::vector<Layout> layouts) {
  for (Layout& layout : layouts)
    for (int* axis : {&layout.dp, &layout.tp})
      if (layout.ranks() > test_job()->world_size()) *axis = 1;
  std::erase_if(layouts, [](const Layout& layout) { return layout.ranks() > test_job()->world_size(); });
  for (Layout& layout : layouts) {
    layout.ep = std::min(layout.ep, layout.tp * layout.cp * layout.dp);
    layout = on_test_device(layout);
  }
  return layouts;
}

}  // namespace tri
