// Context parallelism between ranks of one process: a stage over several cp ranks, each with its chunks of the samples,
// has the loss and the gradients of a stage with whole samples.
#include "lib/model/kv_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "io/base/random.h"
#include "lib/model/stage.h"
#include "tests/comm/local_collectives.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

class ZeroedGradients final : public ParameterHooks {
 public:
  explicit ZeroedGradients(const std::vector<Tensor>& gradients) : gradients_(gradients) {}
  void before_use(const Parameter&) override {}
  Tensor gradient(const Parameter& parameter) override { return gradients_[static_cast<size_t>(parameter.index)]; }
  GradientTarget gradient_target(const Parameter& parameter) override { return {gradient(parameter), 1.0f}; }
  void gradient_ready(const Parameter&) override {}

 private:
  const std::vector<Tensor>& gradients_;  // [Parameter::index]
};

// One microbatch of the whole model on one cp rank.
class Rank {
 public:
  Rank(const Config& config, Axis cp, const std::shared_ptr<RendezvousPoint>& place)
      : config_(config), mesh_(make_mesh(cp.rank, {{"cp", cp.size}})), group_(cp.rank, cp.size, place) {
    Arena measuring;
    allocate(measuring);
    arena_ = std::make_unique<Arena>(*device_, measuring.used());
    allocate(*arena_);
    for (const Parameter& parameter : parameters_.front()) {
      const uint64_t key = derive_key(5, parameter.spec.name);
      for (int64_t i = 0; i < parameter.weight.numel(); ++i)
        parameter.weight.as<float>()[i] = 0.4f * random_normal(key, static_cast<uint64_t>(i));
    }
    for (const Tensor& gradient : gradients_) compute_->zero(gradient);
    const AttentionWorkspace& attention = tensors_.work.attention;
    for (const Tensor& rows : {attention.kv, attention.dkv})  // rows that are not sent may not be read
      if (!rows.empty()) std::fill_n(rows.as<float>(), rows.numel(), std::numeric_limits<float>::quiet_NaN());
    fill_angles(tensors_.work.attention, config_.model, {config_.model.seq_len, cp}, *compute_);
    stage_ = std::make_unique<Stage>(
        StageContext{.config = config_,
                     .mesh = mesh_,
                     .tensors = tensors_,
                     .parameters = parameters_,
                     .hooks = hooks_,
                     .compute = *compute_,
                     .tp = tp_,
                     .splits = splits_,
                     .loss_scale = 1.0f / static_cast<float>(config_.data.micro_batch * config_.model.seq_len),
                     .cp = cp.size > 1 ? &cp_ : nullptr});
  }
  ~Rank() { synchronize(); }

  // Enqueues a forward and a backward pass.
  void run() {
    const SequenceChunks chunks{config_.model.seq_len, mesh_.axis("cp")};
    int32_t *inputs = tensors_.inputs.as<int32_t>(), *targets = tensors_.targets.as<int32_t>();
    for (int sample = 0; sample < config_.data.micro_batch; ++sample)
      for (const SequencePiece& piece : chunks.pieces())
        for (int64_t i = 0; i < piece.count; ++i) {
          *inputs++ = token(sample, piece.global + i);
          *targets++ = token(sample, piece.global + i + 1);
        }
    compute_->zero(tensors_.head.losses);
    stage_->begin(Stage::Mode::kTrain);
    stage_->forward(0, 0, input_, {});
    stage_->backward(0, 0, input_, {}, {});
  }
  void synchronize() {
    compute_->synchronize();
    transfers_->synchronize();
  }

  int64_t bytes_sent() const { return group_.counts().bytes; }
  double loss() const { return tensors_.head.losses.as<float>()[0]; }
  void add_gradients(std::map<std::string, std::vector<double>>& sums) const {
    for (const Parameter& parameter : parameters_.front()) {
      const Tensor gradient = gradients_[static_cast<size_t>(parameter.index)];
      std::vector<double>& sum = sums[parameter.spec.name];
      sum.resize(static_cast<size_t>(gradient.numel()));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient.as<float>()[i];
    }
  }

 private:
  int32_t token(int sample, int64_t position) const {
    return static_cast<int32_t>(random_u64(77, static_cast<uint64_t>(sample * 1000 + position)) %
                                static_cast<uint64_t>(config_.model.vocab));
  }
  void allocate(Arena& arena) {
    const StageDims d = stage_dims(config_, mesh_);
    tensors_ = allocate_stage(config_, mesh_, {1}, 1, arena);
    input_ = arena.take("stage input", d.dtype, {d.Rl, d.C});
    parameters_.assign(1, {});
    gradients_.clear();
    for (const ParamSpec& spec : chunk_parameters(config_, mesh_.axis("pp"), 0)) {
      Tensor weight = arena.take("parameters", d.dtype, {spec.numel()});
      weight.dims = static_cast<int>(spec.shape.size());
      std::copy(spec.shape.begin(), spec.shape.end(), weight.shape.begin());
      Tensor gradient = arena.take("gradients", Dtype::kF32, {spec.numel()});
      gradient.dims = weight.dims;
      gradient.shape = weight.shape;
      parameters_.front().push_back(
          {.spec = spec, .weight = weight, .index = static_cast<int>(parameters_.front().size())});
      gradients_.push_back(gradient);
    }
  }

  const Config config_;
  const Mesh mesh_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> compute_ = device_->make_stream("compute"), transfers_ = device_->make_stream("cp");
  std::unique_ptr<Arena> arena_;
  StageTensors tensors_;
  Tensor input_;
  std::vector<std::vector<Parameter>> parameters_;
  std::vector<Tensor> gradients_;
  LocalCollectives group_;
  GroupOnStream cp_{group_, *transfers_, *device_, TimeCategory::kCp};
  std::unique_ptr<CommGroup> alone_ = make_self_group("tp");
  OneRankTransfers tp_{GroupOnStream(*alone_, *compute_, *device_, TimeCategory::kTp)};
  ZeroedGradients hooks_{gradients_};
  OverlapSplits splits_;
  std::unique_ptr<Stage> stage_;
};

struct Outcome {
  double loss = 0;
  int64_t bytes_sent = 0;
  std::map<std::string, std::vector<double>> gradients;
};

Outcome outcome(Config config, int size) {
  config.parallel.cp = size;
  config = value_or_throw(resolve_config(config, size));
  const auto place = std::make_shared<RendezvousPoint>(size);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<Rank>(config, Axis{rank, size}, place));
  for (const auto& rank : ranks) rank->run();
  Outcome found;
  for (const auto& rank : ranks) {
    rank->synchronize();
    found.loss += rank->loss();
    found.bytes_sent += rank->bytes_sent();
    rank->add_gradients(found.gradients);
  }
  return found;
}

Config base(const std::function<void(Config&)>& change) {
  Config c = tiny_config();
  c.run.device = DeviceChoice::kCpu;
  c.model.seq_len = 16;
  c.data.global_batch = c.data.micro_batch = 2;
  c.parallel.tp_transfers = c.parallel.dp_transfers = Transfers::kCollectives;
  change(c);
  return c;
}

TEST(KvExchange, loss_and_gradients_of_parts_are_those_of_whole_samples) {
  const auto rope = [](Config& c) {
    c.model.position = Position::kRope;
    c.model.kv_heads = 2;
    c.model.head_dim = 4;
  };
  const std::vector<std::pair<const char*, std::function<void(Config&)>>> forms{
      {"learned positions", [](Config&) {}},
      {"RoPE, groups of heads, a window",
       [&](Config& c) {
         rope(c);
         c.model.window = 5;
       }},
      {"windows of a few tiles, exchanged between machines in groups of heads",
       [&](Config& c) {
         rope(c);
         c.model.seq_len = 1024;
         c.model.window = 130;
         c.cluster.ranks_per_node = 1;
       }},
      {"QK-norm, yarn",
       [&](Config& c) {
         rope(c);
         c.model.qk_norm = QkNorm::kHead;
         c.model.rope_scaling = RopeScaling::kYarn;
         c.model.rope_factor = 4;
         c.model.rope_original_seq_len = 4;
       }},
      {"QK-norm over the full width, softcap, one sample",
       [&](Config& c) {
         rope(c);
         c.model.norm = Norm::kRmsNorm;
         c.model.qk_norm = QkNorm::kFull;
         c.model.attention_softcap = 0.5;
         c.data.global_batch = c.data.micro_batch = 1;
       }},
      {"parallel block", [](Config& c) { c.model.block = Block::kParallel; }}};
  for (const auto& [name, change] : forms)
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Config config = base(change);
      config.parallel.recompute = recompute;
      const Outcome whole = outcome(config, 1);
      for (const int size : {2, 4}) {
        SCOPED_TRACE(fmt::format("{}, recompute {}, cp {}", name, enum_name(recompute), size));
        const Outcome parts = outcome(config, size);
        EXPECT_NEAR(parts.loss, whole.loss, 1e-5 * whole.loss);
        ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
        for (const auto& [parameter, expected] : whole.gradients) {
          const std::vector<double>& found = parts.gradients.at(parameter);
          double difference = 0, size_sq = 0;
          for (size_t i = 0; i < expected.size(); ++i) {
            difference += (found[i] - expected[i]) * (found[i] - expected[i]);
            size_sq += expected[i] * expected[i];
          }
          EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size_sq) + 1e-9) << parameter;
        }
      }
    }
}

TEST(KvExchange, heads_form_groups_between_machines_only) {
  const AttentionSpec attention{.heads = 32, .kv_heads = 8, .head_dim = 128};
  const auto groups = [&](int tp, int cp, int ranks_per_node, bool overlap = true) {
    return kv_head_groups(attention, tp, cp, ranks_per_node, overlap);
  };
  EXPECT_EQ(groups(1, 8, 8), 1);
  EXPECT_EQ(groups(1, 16, 8), 4);
  EXPECT_EQ(groups(1, 16, 8, /*overlap=*/false), 1);
  EXPECT_EQ(groups(4, 4, 8), 2) << "two heads";
  EXPECT_EQ(groups(8, 2, 8), 1) << "one head";
  EXPECT_EQ(groups(1, 3, 8), 4) << "some groups of ranks span machines";
  EXPECT_EQ(groups(8, 1, 4), 1);
}

// Attention computes each head alone, so groups of heads change no bit.
TEST(KvExchange, groups_of_heads_between_machines_are_bit_identical_to_one_group) {
  for (const bool with_rope : {false, true}) {
    Config config = base([&](Config& c) {
      c.model.heads = 8;
      c.model.kv_heads = with_rope ? 4 : 8;  // grouped rows, or rows by kind of head
      c.model.head_dim = 4;
      if (with_rope) c.model.position = Position::kRope;
    });
    const Outcome one = outcome(config, 4);
    config.cluster.ranks_per_node = 2;  // four groups
    const Outcome groups = outcome(config, 4);
    EXPECT_EQ(groups.loss, one.loss);
    EXPECT_EQ(groups.gradients, one.gradients);
    EXPECT_EQ(groups.bytes_sent, one.bytes_sent);
  }
}

TEST(KvExchange, with_a_window_only_neighbouring_chunks_are_sent) {
  const auto sent = [](int window, int seq_len) {
    return outcome(base([&](Config& c) {
                     c.model.seq_len = seq_len;
                     c.model.window = window;
                   }),
                   4)
        .bytes_sent;
  };
  // Of eight chunks of 256 positions seven read a tile of 128 before them, which for six is another rank's. Without a
  // window the ranks read 6, 5, 4 and 3 whole chunks of others.
  EXPECT_EQ(6 * sent(100, 2048), sent(0, 2048));
}

}  // namespace
}  // namespace tri::test
