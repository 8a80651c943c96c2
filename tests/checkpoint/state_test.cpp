// The shards of the training state: each is at its stated place, and together they cover every tensor once.
#include "lib/checkpoint/state.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/core/arena.h"
#include "kernels/cpu/device.h"
#include "lib/config/config.h"
#include "lib/optim/optimizers.h"

namespace tri::test {
namespace {

// Calls f(index of each element in the row-major tensor of `shape`) for the elements of a block, in order.
template <class F>
void for_elements(const std::vector<int64_t>& shape, const Region& block, F f) {
  std::vector<int64_t> at = block.start;
  for (int64_t n = num_elements(block.extent); n > 0; --n) {
    int64_t index = 0;
    for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    f(index);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < block.start[d] + block.extent[d]) break;
      at[d] = block.start[d];
    }
  }
}

Config small_config(int tp, int pp, int dp, int chunks, int zero, Dtype compute, bool tied, OptimizerKind optimizer,
                    const std::string& layers = "even") {
  Config c;
  c.model = {.layers = 4, .hidden = 24, .heads = 4, .kv_heads = 2, .vocab = 100, .seq_len = 8, .tie_embeddings = tied};
  c.data = {.global_batch = 8, .micro_batch = 1};
  c.parallel = {.tp = tp, .pp = pp, .dp = dp, .chunks = chunks, .layers_per_chunk = layers, .zero = zero};
  c.parallel.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  c.parallel.bucket_elements = 3000;
  c.parallel.dp_transfers = Transfers::kCollectives;
  c.optimizer = {.name = optimizer, .ema = 0.9};
  c.precision.compute = compute;
  return value_or_throw(resolve_config(c, tp * pp * dp));
}

struct Layout {
  int tp, pp, dp, chunks, zero;
  Dtype compute;
  bool tied;
  std::string layers = "even";  // parallel.layers_per_chunk
};

void expect_covered(const Layout& l, OptimizerKind optimizer) {
  const auto device = make_cpu_device();
  SCOPED_TRACE(testing::Message() << "tp " << l.tp << " pp " << l.pp << " dp " << l.dp << " chunks " << l.chunks
                                  << " zero " << l.zero << " tied " << l.tied << " " << enum_name(optimizer));
  const Config config = small_config(l.tp, l.pp, l.dp, l.chunks, l.zero, l.compute, l.tied, optimizer, l.layers);
  const OptimizerRow& row = optimizer_row(optimizer);
  constexpr float kAverageShift = 0.125f;
  const auto shift_of = [](size_t state) { return 0.25f * static_cast<float>(state + 1); };  // exact when added
  const auto names_of = [&](const ParamSpec& spec) {
    std::vector<std::string> names{"model/" + spec.name, "ema/" + spec.name};
    for (const std::string& state : spec.muon ? row.matrix_state : row.state)
      names.push_back("optimizer/" + spec.name + "/" + state);
    return names;
  };
  std::map<std::string, std::vector<int>> written;  // number of times that each element is written
  for (const ParamSpec& spec : model_parameters(config))
    for (const std::string& name : names_of(spec)) written[name].assign(static_cast<size_t>(spec.numel()), 0);
  const auto check_rank = [&](const Mesh& mesh) {
    Arena measuring;
    allocate_store(config, mesh, measuring);
    Arena arena(*device, measuring.used());
    const StoreTensors store = allocate_store(config, mesh, arena);
    // Every element's value is its index in its parameter.
    const int64_t parts = l.zero >= 1 ? l.dp : 1;
    for (size_t c = 0; c < store.chunks.size(); ++c) {
      const ChunkStoreTensors& chunk = store.chunks[c];
      const auto specs = chunk_parameters(config, mesh.axis("pp"), static_cast<int>(c));
      for (size_t i = 0; i < specs.size(); ++i) {
        const std::vector<int64_t> local = specs[i].local_shape(l.tp);
        Region block{std::vector<int64_t>(local.size(), 0), local};
        if (specs[i].split_dim >= 0) {
          const auto dim = static_cast<size_t>(specs[i].split_dim);
          block.start[dim] = mesh.axis("tp").rank * local[dim];
        }
        const Bucket& bucket = chunk.layout.buckets[static_cast<size_t>(chunk.layout.bucket_of[i])];
        const int64_t size = bucket.size / parts;
        const int64_t first = bucket.first + (parts > 1 ? mesh.axis("dp").rank * size : 0);
        int64_t at = chunk.layout.offset[i];
        for_elements(specs[i].shape, block, [&](int64_t index) {
          const int64_t place = at++ - first;
          if (place < 0 || place >= size) return;
          const auto value = static_cast<float>(index);
          if (chunk.master.empty())
            chunk.parameters.as<float>()[first + place] = value;
          else
            chunk.master.as<float>()[bucket.first / parts + place] = value;
          const std::vector<Tensor> state = chunk.state_of(static_cast<size_t>(chunk.layout.bucket_of[i]));
          ASSERT_EQ(state.size(), specs[i].muon ? row.matrix_state.size() : row.state.size());
          for (size_t s = 0; s < state.size(); ++s) state[s].as<float>()[place] = value + shift_of(s);
          chunk.ema.as<float>()[bucket.first / parts + place] = value + kAverageShift;
        });
      }
    }
    for (const StateShard& shard : state_shards(config, mesh, store)) {
      ASSERT_TRUE(written.count(shard.shard.tensor)) << shard.shard.tensor;
      float shift = shard.shard.tensor.starts_with("ema/") ? kAverageShift : 0;
      for (const auto* const names : {&row.state, &row.matrix_state})
        for (size_t s = 0; s < names->size(); ++s)
          if (shard.shard.tensor.starts_with("optimizer/") && shard.shard.tensor.ends_with("/" + (*names)[s]))
            shift = shift_of(s);
      ASSERT_EQ(shard.memory.numel(), num_elements(shard.shard.region.extent));
      int64_t at = 0;
      for_elements(shard.shard.shape, shard.shard.region, [&](int64_t index) {
        ASSERT_EQ(shard.memory.as<float>()[at++], static_cast<float>(index) + shift) << shard.shard.tensor;
        if (shard.writes) ++written[shard.shard.tensor][static_cast<size_t>(index)];
      });
    }
  };
  for (int rank = 0; rank < l.tp * l.pp * l.dp; ++rank)
    check_rank(make_mesh(rank, {{"tp", l.tp}, {"dp", l.dp}, {"pp", l.pp}}));
  for (const auto& [name, times] : written)
    for (size_t i = 0; i < times.size(); ++i) ASSERT_EQ(times[i], 1) << name << " element " << i;
}

TEST(StateShards, have_the_types_of_their_memory) {
  Config config = small_config(1, 1, 1, 1, 1, Dtype::kBF16, true, OptimizerKind::kAdamW);
  config.optimizer.moments = Dtype::kBF16;
  const Mesh mesh = make_mesh(0, {});
  Arena measuring;
  allocate_store(config, mesh, measuring);
  const auto device = make_cpu_device();
  Arena arena(*device, measuring.used());
  const std::vector<StateShard> shards = state_shards(config, mesh, allocate_store(config, mesh, arena));
  EXPECT_FALSE(shards.empty());
  for (const StateShard& shard : shards) {
    const bool moment = shard.shard.tensor.starts_with("optimizer/");
    EXPECT_EQ(shard.shard.type, moment ? StoredType::kBf16 : StoredType::kF32) << shard.shard.tensor;
    EXPECT_EQ(shard.memory.bytes(), num_elements(shard.shard.region.extent) * (moment ? 2 : 4));
  }
}

TEST(StateShards, written_ones_cover_every_tensor_once_on_any_layout) {
  for (const OptimizerRow& row : optimizers())
    for (const Layout& l :
         {Layout{1, 1, 1, 1, 0, Dtype::kF32, false}, Layout{2, 2, 2, 1, 1, Dtype::kF32, true},
          Layout{2, 1, 2, 1, 2, Dtype::kBF16, false}, Layout{1, 2, 2, 2, 0, Dtype::kBF16, true},
          Layout{2, 2, 2, 2, 1, Dtype::kBF16, true}, Layout{1, 1, 4, 1, 1, Dtype::kF32, true},
          Layout{2, 2, 2, 1, 1, Dtype::kF32, true, "3,1"}, Layout{1, 3, 1, 1, 0, Dtype::kBF16, false, "auto"}})
      expect_covered(l, row.kind);
}

// Shards of dp's own parameters, which dp does not reduce, and of others.
TEST(StateShards, cover_parameters_that_are_sharded_over_dp) {
  const auto device = make_cpu_device();
  const std::vector<ParamSpec> specs{
      {.name = "matrix", .shape = {6, 700}, .split_dim = 1, .sharded = {"tp"}, .reduced = {"dp"}, .decay = true},
      {.name = "own", .shape = {4, 300}, .split_dim = 0, .sharded = {"dp"}, .reduced = {"tp"}, .decay = true},
      {.name = "norm", .shape = {500}, .reduced = {"tp", "dp"}}};
  for (const int zero : {0, 1, 2}) {
    const Config config = small_config(2, 1, 2, 1, zero, Dtype::kF32, true, OptimizerKind::kAdamW);
    std::map<std::string, std::vector<int>> written;
    for (const ParamSpec& spec : specs) written["model/" + spec.name].assign(static_cast<size_t>(spec.numel()), 0);
    for (int rank = 0; rank < 4; ++rank) {
      const Mesh mesh = make_mesh(rank, {{"tp", 2}, {"dp", 2}});
      Arena measuring;
      allocate_store(config, mesh, {specs}, measuring);
      Arena arena(*device, measuring.used());
      const StoreTensors store = allocate_store(config, mesh, {specs}, arena);
      for (const StateShard& shard : state_shards(config, mesh, store)) {
        if (!shard.writes || !written.contains(shard.shard.tensor)) continue;
        for_elements(shard.shard.shape, shard.shard.region,
                     [&](int64_t index) { ++written[shard.shard.tensor][static_cast<size_t>(index)]; });
      }
    }
    for (const auto& [name, times] : written) EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name << zero;
  }
}

TEST(StateShards, cover_experts_once_whatever_ranks_divide_them) {
  const auto device = make_cpu_device();
  for (const OptimizerRow& row : optimizers())
    for (const int zero : {0, 1, 2})
      for (const int ep : {1, 2, 4}) {
        SCOPED_TRACE(testing::Message() << enum_name(row.kind) << " zero " << zero << " ep " << ep);
        Config config = small_config(2, 1, 2, 1, zero, Dtype::kF32, true, row.kind);
        config.model.experts = 8;
        config.model.expert_hidden = 16;
        config.model.shared_experts = config.model.dense_layers = 1;
        config.model.bias = false;
        config.model.qkv_bias = AutoFlag::kFalse;
        config.parallel.ep = ep;
        config = value_or_throw(resolve_config(config, 4));
        std::map<std::string, std::vector<int>> written;
        for (const ParamSpec& spec : model_parameters(config))
          written["model/" + spec.name].assign(static_cast<size_t>(spec.numel()), 0);
        for (int rank = 0; rank < 4; ++rank) {
          const Mesh mesh = make_mesh(rank, {{"tp", 2}, {"dp", 2}, {"ep", ep}});
          Arena measuring;
          allocate_store(config, mesh, measuring);
          Arena arena(*device, measuring.used());
          const StoreTensors store = allocate_store(config, mesh, arena);
          for (const StateShard& shard : state_shards(config, mesh, store)) {
            if (!shard.writes || !written.contains(shard.shard.tensor)) continue;
            for_elements(shard.shard.shape, shard.shard.region,
                         [&](int64_t index) { ++written[shard.shard.tensor][static_cast<size_t>(index)]; });
          }
        }
        for (const auto& [name, times] : written) EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name;
      }
}

}  // namespace
}  // namespace tri::test
