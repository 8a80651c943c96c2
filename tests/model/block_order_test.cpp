// The order of a block's work is defined once (lib/model/block_order.h). This test records the transfers and GEMMs that
// a block enqueues and compares them with those of the transfers as they are timed (layer_transfers).
#include "lib/model/block_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lib/model/block.h"
#include "lib/tune/layer_transfers.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

using Calls = std::vector<std::string>;

// Records what is transferred, and moves nothing.
class NotingGroup final : public CommGroup {
 public:
  NotingGroup(Axis axis, Calls& calls) : CommGroup("noting", axis.rank, axis.size), calls_(calls) {}
  // Excludes rows whose gathers are part of recomputing, which no list contains. {}: none.
  void exclude(Tensor rows) { excluded_ = rows.data; }

 private:
  void do_all_gather(Tensor out, Tensor, Stream&) override {
    if (out.data != excluded_) calls_.push_back(fmt::format("gather {}", out.data));
  }
  void do_reduce_scatter(Tensor, Tensor inp, Stream&) override { calls_.push_back(fmt::format("reduce {}", inp.data)); }
  void do_all_reduce(Tensor, ReduceOp, Stream&) override { ADD_FAILURE() << "all-reduce in a block"; }
  void do_broadcast(Tensor, int, Stream&) override { ADD_FAILURE() << "broadcast in a block"; }
  void do_send(Tensor, int, Stream&) override { ADD_FAILURE() << "send in a block"; }
  void do_recv(Tensor, int, Stream&) override { ADD_FAILURE() << "receive in a block"; }

  Calls& calls_;
  const void* excluded_ = nullptr;
};

// Records each GEMM by the weight that it reads, or whose gradient it computes.
class NotingHooks final : public ParameterHooks {
 public:
  NotingHooks(const std::vector<Tensor>& gradients, Calls& calls) : gradients_(gradients), calls_(calls) {}
  void before_use(const Parameter& parameter) override {
    if (parameter.spec.decay) calls_.push_back("weight " + parameter.spec.name);  // only matrices
  }
  Tensor gradient(const Parameter& parameter) override { return gradients_[static_cast<size_t>(parameter.index)]; }
  GradientTarget gradient_target(const Parameter& parameter) override {
    calls_.push_back("gradient " + parameter.spec.name);
    return {gradient(parameter), 0.0f};
  }
  void gradient_ready(const Parameter&) override {}

 private:
  const std::vector<Tensor>& gradients_;  // [Parameter::index]
  Calls& calls_;
};

Config by_collectives(Config config, int tp) {
  config.parallel.tp_transfers = Transfers::kCollectives;
  return value_or_throw(resolve_config(config, tp));
}

// The first layer of a model on tp rank 0, whose peers are idle.
class Layer {
 public:
  Layer(const Config& unresolved, int tp) : config_(by_collectives(unresolved, tp)), mesh_(make_mesh(0, {{"tp", tp}})) {
    Arena measuring;
    allocate(measuring);
    arena_ = std::make_unique<Arena>(*device_, measuring.used());
    allocate(*arena_);
    block_ = std::make_unique<TransformerBlock>(0, parameters_, config_);
    GroupOnStream collectives(group_, *tp_stream_, *device_, TimeCategory::kTp);
    if (tp == 1)
      tp_ = std::make_unique<OneRankTransfers>(std::move(collectives));
    else
      tp_ = std::make_unique<CollectiveTransfers>(std::move(collectives), *device_);
    ctx_ = std::make_unique<LayerContext>(LayerContext{.config = config_,
                                                       .dims = stage_dims(config_, mesh_),
                                                       .work = stage_.work,
                                                       .compute = *compute_,
                                                       .tp = *tp_,
                                                       .splits = splits_,
                                                       .hooks = hooks_});
  }
  ~Layer() { compute_->synchronize(); }

  std::vector<LayerTransfer> transfers() const { return layer_transfers(config_, mesh_, stage_, parameters_); }
  // Returns what each of them enqueues with its GEMMs.
  std::vector<Calls> calls_of_transfers() {
    std::vector<Calls> all;
    for (const LayerTransfer& transfer : transfers()) all.push_back(noted([&] { transfer.together(*ctx_); }));
    return all;
  }
  Calls forward() {
    return noted([&] {
      LayerTensors t = first_layer(config_, mesh_, stage_);
      block_->forward(*ctx_, {.inp = input_}, t);
    });
  }
  // `deferred_calls`: the calls when the deferred weight gradient is enqueued.
  Calls backward(TransformerBlock::QkvWeight qkv_weight, Calls& deferred_calls) {
    TransformerBlock::WeightGradient deferred = [this] { calls_.push_back(qkv_gradient()); };  // of the layer above
    LayerTensors kept = stage_.chunks.front().front().layers.front();
    kept.input = input_;
    group_.exclude(stage_.work.normed);
    Calls calls = noted([&] { block_->backward(*ctx_, kept, input_, deferred, qkv_weight); });
    group_.exclude({});
    deferred_calls = noted([&] {
      if (deferred) deferred();
    });
    return calls;
  }
  static std::string qkv_gradient() { return "gradient " + weight_of(modules::kQkv, 0); }

 private:
  void allocate(Arena& arena) {
    const StageDims d = stage_dims(config_, mesh_);
    stage_ = allocate_stage(config_, mesh_, {1}, 1, arena);
    input_ = arena.take("stage input", d.dtype, {d.Rl, d.C});
    parameters_.clear();
    gradients_.clear();
    for (const ParamSpec& spec : chunk_parameters(config_, mesh_.axis("pp"), 0)) {
      const int64_t count = spec.local_numel(mesh_.axis("tp").size);
      parameters_.push_back({.spec = spec,
                             .weight = arena.take("parameters", d.dtype, {count}),
                             .index = static_cast<int>(parameters_.size())});
      gradients_.push_back(arena.take("gradients", Dtype::kF32, {count}));
    }
  }
  template <class Work>
  Calls noted(Work work) {
    calls_.clear();
    work();
    return std::move(calls_);
  }

  Config config_;
  Mesh mesh_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> compute_ = device_->make_stream("compute"), tp_stream_ = device_->make_stream("tp");
  std::unique_ptr<Arena> arena_;
  StageTensors stage_;
  Tensor input_;
  std::vector<Parameter> parameters_;
  std::vector<Tensor> gradients_;
  Calls calls_;
  NotingGroup group_{mesh_.axis("tp"), calls_};
  std::unique_ptr<AxisTransfers> tp_;
  NotingHooks hooks_{gradients_, calls_};
  OverlapSplits splits_;
  std::unique_ptr<TransformerBlock> block_;
  std::unique_ptr<LayerContext> ctx_;
};

struct Form {
  Block block = Block::kSequential;
  int parallel_norms = 1;
  NormPosition norm_position = NormPosition::kPre;
};

template <class Check>  // check(config, tp)
void for_all_layers(Check check) {
  for (const Form& form : {Form{}, Form{Block::kParallel}, Form{Block::kParallel, 2},
                           Form{.norm_position = NormPosition::kPost}, Form{.norm_position = NormPosition::kBoth}})
    for (const Activation activation : {Activation::kGelu, Activation::kSwiglu})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull})
        for (const int tp : {1, 2}) {
          SCOPED_TRACE(fmt::format("{} block, {} norms {}, {}, recompute {}, tp {}", enum_name(form.block),
                                   form.parallel_norms, enum_name(form.norm_position), enum_name(activation),
                                   enum_name(recompute), tp));
          Config c = tiny_config();
          c.model.block = form.block;
          c.model.parallel_norms = form.parallel_norms;
          c.model.norm_position = form.norm_position;
          c.model.activation = activation;
          c.parallel.recompute = recompute;
          c.parallel.tp = tp;
          fill_derived(c.model);
          check(c, tp);
        }
}

Calls joined(const std::vector<Calls>& parts, size_t first, size_t end) {
  Calls all;
  for (size_t i = first; i < end; ++i) all.insert(all.end(), parts[i].begin(), parts[i].end());
  return all;
}

TEST(BlockOrder, a_pass_enqueues_the_transfers_and_gemms_that_are_timed_in_the_same_order) {
  for_all_layers([](const Config& c, int tp) {
    Layer layer(c, tp);
    const std::vector<Calls> parts = layer.calls_of_transfers();
    const size_t forward_parts = block_order(layers_of_model(c)[0], Pass::kForward).size();
    ASSERT_EQ(parts.size(), forward_parts + block_order(layers_of_model(c)[0], Pass::kBackward).size());

    EXPECT_EQ(layer.forward(), joined(parts, 0, forward_parts));

    Calls expected = joined(parts, forward_parts, parts.size());
    const auto deferred_call = std::ranges::find(expected, Layer::qkv_gradient());
    ASSERT_NE(deferred_call, expected.end());
    if (c.parallel.recompute == Recompute::kFull && c.model.norm_position != NormPosition::kPre) {
      // The norm of the last output is where backward begins: the forward pass is repeated before, after the deferred
      // gradient.
      expected.erase(deferred_call);
      Calls first{Layer::qkv_gradient()};
      const Calls recomputed = joined(parts, 0, forward_parts);
      first.insert(first.end(), recomputed.begin(), recomputed.end());
      expected.insert(expected.begin(), first.begin(), first.end());
    } else if (c.parallel.recompute == Recompute::kFull) {  // repeats the forward pass without its last transfer
      const Calls recomputed = joined(parts, 0, forward_parts - 1);
      expected.insert(deferred_call + 1, recomputed.begin(), recomputed.end());
    }
    Calls deferred;
    EXPECT_EQ(layer.backward(TransformerBlock::QkvWeight::kDefer, deferred), expected);
    EXPECT_EQ(deferred, Calls{Layer::qkv_gradient()});

    const Calls lowest = layer.backward(TransformerBlock::QkvWeight::kEnqueue, deferred);
    EXPECT_TRUE(deferred.empty());
    EXPECT_EQ(lowest.size(), expected.size() + 1);
    EXPECT_EQ(std::ranges::count(lowest, Layer::qkv_gradient()), 2);
  });
}

TEST(BlockOrder, each_gemm_of_a_layer_is_timed_once) {
  for_all_layers([](const Config& c, int tp) {
    Layer layer(c, tp);
    const std::vector<Calls> parts = layer.calls_of_transfers();
    const size_t forward_parts = block_order(layers_of_model(c)[0], Pass::kForward).size();
    const auto gemms = [&](size_t first, size_t end) {
      std::multiset<std::string> all;
      for (const std::string& call : joined(parts, first, end))
        if (!call.starts_with("gather") && !call.starts_with("reduce")) all.insert(call);
      return all;
    };
    std::multiset<std::string> forward, backward;
    for (const std::string_view linear : {modules::kQkv, modules::kProj, modules::kFc1, modules::kFc2}) {
      forward.insert("weight " + weight_of(linear, 0));
      backward.insert("weight " + weight_of(linear, 0));
      backward.insert("gradient " + weight_of(linear, 0));
    }
    EXPECT_EQ(gemms(0, forward_parts), forward);
    EXPECT_EQ(gemms(forward_parts, parts.size()), backward);
  });
}

TEST(BlockOrder, each_transfer_is_timed_once_with_an_overlap_split_of_its_own) {
  for_all_layers([](const Config& c, int tp) {
    Layer layer(c, tp);
    std::set<std::pair<LinearPlace, Pass>> splits;
    for (const LayerTransfer& transfer : layer.transfers()) {
      EXPECT_TRUE(splits.emplace(transfer.linear, transfer.pass).second) << transfer.alongside;
      EXPECT_TRUE(transfer.reduces || !transfer.takes_direct) << transfer.alongside;
    }
    // A gather for each norm and a reduce for each sum in the forward pass, and the reverse in the backward pass.
    EXPECT_EQ(splits.size(),
              c.model.block == Block::kParallel ? 2u + 2u * static_cast<size_t>(c.model.parallel_norms) : 8u);
    for (const Calls& calls : layer.calls_of_transfers())
      EXPECT_EQ(
          std::ranges::count_if(
              calls, [](const std::string& call) { return call.starts_with("gather") || call.starts_with("reduce"); }),
          tp > 1 ? 1 : 0);
  });
}

}  // namespace
}  // namespace tri::test
