// Muon: the division of matrices among ranks, where their parts lie, and its steps against float64.
#include "lib/optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "io/base/random.h"
#include "kernels/cpu/device.h"
#include "kernels/ops.h"
#include "lib/config/axis_fields.h"
#include "lib/optim/optimizer.h"
#include "lib/optim/start_values.h"
#include "tests/comm/local_collectives.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

// A matrix in float64.
struct Matrix {
  int64_t rows = 0, columns = 0;
  Values values;

  Matrix(int64_t rows, int64_t columns) : Matrix(rows, columns, Values(static_cast<size_t>(rows * columns))) {}
  Matrix(int64_t rows, int64_t columns, Values values) : rows(rows), columns(columns), values(std::move(values)) {}
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
  Matrix transposed() const {
    Matrix t(columns, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) t.at(c, r) = at(r, c);
    return t;
  }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t k = 0; k < a.columns; ++k)
      for (int64_t c = 0; c < b.columns; ++c) out.at(r, c) += a.at(r, k) * b.at(k, c);
  return out;
}

// torch.optim._muon._zeropower_via_newtonschulz, in float64.
Matrix orthogonal(Matrix x) {
  const bool tall = x.rows > x.columns;
  if (tall) x = x.transposed();
  const double norm = std::sqrt(dot(x.values, x.values)) + 1e-7;
  for (double& value : x.values) value /= norm;
  for (int i = 0; i < 5; ++i) {
    const Matrix gram = product(x, x.transposed());
    Matrix powers = product(gram, gram);
    for (size_t k = 0; k < powers.values.size(); ++k)
      powers.values[k] = 2.0315 * powers.values[k] - 4.775 * gram.values[k];
    const Matrix next = product(powers, x);
    for (size_t k = 0; k < x.values.size(); ++k) x.values[k] = 3.4445 * x.values[k] + next.values[k];
  }
  return tall ? x.transposed() : x;
}

Config muon_config(int tp, int pp, int dp, int zero) {
  Config c;
  c.model = {.layers = 4, .hidden = 24, .heads = 8, .kv_heads = 4, .ffn_hidden = 40, .vocab = 60, .seq_len = 8};
  c.model.activation = Activation::kSwiglu;
  c.model.norm = Norm::kRmsNorm;
  c.model.position = Position::kRope;
  c.model.bias = false;
  c.model.head_dim = 6;
  c.data = {.global_batch = 8, .micro_batch = 1};
  c.parallel = {.tp = tp, .pp = pp, .dp = dp, .zero = zero, .bucket_elements = 3000};
  c.optimizer.name = OptimizerKind::kMuon;
  return value_or_throw(resolve_config(c, tp * pp * dp));
}

TEST(DivideMatrices, balances_the_work_and_keeps_the_order) {
  std::vector<MatrixShape> shapes;  // LLaMA 8B
  for (int layer = 0; layer < 32; ++layer)
    for (const MatrixShape& shape : {MatrixShape{4096, 4096},
                                     {1024, 4096},
                                     {1024, 4096},
                                     {4096, 4096},
                                     {14336, 4096},
                                     {14336, 4096},
                                     {4096, 14336}})
      shapes.push_back(shape);
  for (const int members : {1, 2, 7, 8, 16}) {
    const std::vector<MatrixOwner> owners = divide_matrices(shapes, members);
    ASSERT_EQ(owners.size(), shapes.size());
    std::vector<double> work(static_cast<size_t>(members));
    double all = 0, largest = 0;
    for (size_t i = 0; i < owners.size(); ++i) {
      ASSERT_TRUE(owners[i].member >= 0 && owners[i].member < members);
      work[static_cast<size_t>(owners[i].member)] += iteration_flops(shapes[i]);
      all += iteration_flops(shapes[i]);
      largest = std::max(largest, iteration_flops(shapes[i]));
      if (i > 0) {
        EXPECT_TRUE(owners[i].window == owners[i - 1].window || owners[i].window == owners[i - 1].window + 1);
      }
    }
    EXPECT_LE(*std::ranges::max_element(work), all / members + largest) << members;
    if (members <= 8) {
      EXPECT_LE(*std::ranges::max_element(work), 1.05 * all / members) << members;
    }
  }
  EXPECT_EQ(divide_matrices(shapes, 1).back().window, static_cast<int>(shapes.size()) - 1);
  EXPECT_EQ(iteration_flops({2048, 8192}), 5 * (4.0 * 2048 * 2048 * 8192 + 2.0 * 2048 * 2048 * 2048));
  // 136 of 256 tiles of the symmetric products
  EXPECT_EQ(iteration_flops({4096, 14336}), 5 * 2.0 * 4096 * 4096 * (136.0 / 256 * (14336 + 4096) + 14336));
  EXPECT_EQ(iteration_flops({14336, 4096}), iteration_flops({4096, 14336}));
}

// The logical matrices of a weight: the global elements of each, row by row.
std::vector<std::vector<int64_t>> logical_elements(const std::string& name, const std::vector<int64_t>& shape,
                                                   const ModelConfig& m) {
  const int64_t columns = shape.back();
  std::vector<std::vector<int64_t>> matrices;
  const auto add_row = [&](size_t matrix, int64_t row) {
    matrices.resize(std::max(matrices.size(), matrix + 1));
    for (int64_t c = 0; c < columns; ++c) matrices[matrix].push_back(row * columns + c);
  };
  if (name.ends_with("attention/qkv/weight")) {
    const int64_t group = m.heads / m.kv_heads, heads = group + 2;
    for (int64_t row = 0; row < shape[0]; ++row) {
      const int64_t head = row / m.head_dim % heads;
      add_row(head < group ? 0 : static_cast<size_t>(head - group + 1), row);
    }
  } else {
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
    const int64_t of_matrix = shape.size() == 3 ? shape[1] : rows;
    for (int64_t row = 0; row < rows; ++row) add_row(static_cast<size_t>(row / of_matrix), row);
  }
  return matrices;
}

// Returns the index in the global tensor of element `e` of this rank's shard.
int64_t global_index(const ParamSpec& spec, const Mesh& mesh, int64_t e) {
  if (spec.split_dim < 0) return e;
  const auto dim = static_cast<size_t>(spec.split_dim);
  const std::vector<int64_t> local = spec.local_shape(mesh);
  int64_t inner = 1;
  for (size_t d = dim + 1; d < local.size(); ++d) inner *= local[d];
  const int64_t outer = e / (local[dim] * inner), middle = e / inner % local[dim];
  return (outer * spec.shape[dim] + spec.shard(mesh).rank * local[dim] + middle) * inner + e % inner;
}

// Every part that the members send lies where the owner expects it: it receives whole logical matrices, row by row.
TEST(MuonPlan, owners_receive_whole_logical_matrices_on_any_layout) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  for (const auto& [tp, pp, dp, zero] : std::vector<std::array<int, 4>>{
           {1, 1, 1, 0}, {1, 1, 3, 1}, {2, 1, 1, 1}, {4, 1, 2, 1}, {2, 2, 2, 0}, {2, 1, 4, 2}, {4, 2, 1, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {} dp {} zero {}", tp, pp, dp, zero));
    Config config = muon_config(tp, pp, dp == 3 ? 1 : dp, zero);
    config.parallel.dp = dp;  // 3 does not divide the batch, which plays no role here
    size_t found = 0;
    for (int stage = 0; stage < pp; ++stage) {
      std::vector<MuonPlan> plans;
      std::vector<std::vector<ChunkStoreTensors>> chunks;
      std::vector<Mesh> meshes;
      for (int member = 0; member < tp * dp; ++member) {
        meshes.push_back(make_mesh(stage * tp * dp + member, {{"tp", tp}, {"dp", dp}, {"pp", pp}}));
        ChunkStoreTensors chunk;
        chunk.specs = chunk_parameters(config, meshes.back().axis("pp"), 0);
        chunk.layout = make_flat_layout(chunk.specs, meshes.back(), config.parallel.bucket_elements);
        chunks.push_back({chunk});
        plans.push_back(plan_muon(chunks.back(), meshes.back(), zero));
        ASSERT_EQ(plans.back().member(), member);
      }
      const std::vector<ParamSpec>& specs = chunks[0][0].specs;
      size_t number = 0;  // of the matrix
      for (size_t i = 0; i < specs.size(); ++i) {
        EXPECT_EQ(specs[i].muon, specs[i].name.starts_with("layers/") && specs[i].decay) << specs[i].name;
        if (!specs[i].muon) continue;
        for (const std::vector<int64_t>& expected : logical_elements(specs[i].name, specs[i].shape, config.model)) {
          const MuonMatrix& of_owner = plans[0].matrices[number];
          const MatrixShape& shape = of_owner.shape;
          const MuonPlan& owner = plans[static_cast<size_t>(of_owner.owner.member)];
          ASSERT_EQ(shape.rows * shape.columns, static_cast<int64_t>(expected.size())) << specs[i].name;
          Buffer whole(Dtype::kF32, {shape.rows, shape.columns}), joined(Dtype::kF32, {shape.rows, shape.columns});
          for (size_t member = 0; member < plans.size(); ++member) {
            const MuonPlan& plan = plans[member];
            const MuonMatrix& matrix = plan.matrices[number];
            EXPECT_EQ(matrix.owner.member, of_owner.owner.member);
            if (!plan.sends(matrix, plan.dp.rank)) continue;
            // This member's slice of the bucket: each element's value is its index in the global tensor.
            const Mesh& mesh = meshes[member];
            const FlatLayout& layout = chunks[member][0].layout;
            const Bucket& bucket = layout.buckets[matrix.bucket];
            const auto kind = zero >= 1 ? Slices::kSharded : Slices::kWhole;
            const SliceRange slice = slice_ranges(layout, mesh, kind)[matrix.bucket];
            EXPECT_TRUE(bucket.muon);
            Values indices(static_cast<size_t>(slice.size), -1.0);
            for (int64_t e = 0; e < specs[i].local_numel(mesh); ++e) {
              const int64_t place = layout.offset[i] + e - slice.begin;
              if (place >= 0 && place < slice.size)
                indices[static_cast<size_t>(place)] = static_cast<double>(global_index(specs[i], mesh, e));
            }
            const MatrixPart& part = matrix.parts[static_cast<size_t>(plan.dp.rank)];
            if (part.count == 0) continue;
            MatrixRuns runs = matrix.runs;
            runs.offset -= slice.begin;
            runs.first = part.first;
            const Buffer from(Dtype::kF32, {slice.size}, indices);
            const Tensor to = Tensor(whole).flat(plan.tp.rank * matrix.shard_elements + part.first, part.count);
            pack_matrix({.out = to, .inp = from, .runs = runs}, *stream);
            stream->synchronize();
          }
          scale_matrix({.out = joined, .inp = whole, .inp_shards = of_owner.column_shards}, *stream);
          stream->synchronize();
          const Values received = joined.values();
          for (size_t e = 0; e < expected.size(); ++e)
            ASSERT_EQ(received[e], static_cast<double>(expected[e])) << specs[i].name << " element " << e;
          EXPECT_GE(owner.whole_elements, shape.rows * shape.columns);
          ++number, ++found;
        }
      }
      EXPECT_EQ(number, plans[0].matrices.size());
    }
    EXPECT_EQ(found, 4u * 7);  // q, k, v, proj, gate, up, fc2
  }
}

TEST(Muon, the_iteration_follows_float64_and_does_not_depend_on_shards) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {24, 24}, {8, 48}, {48, 16}, {144, 160}}) {
    const int64_t side = std::min(rows, columns);
    const Values u = random_values(rows * columns, "u");
    const Matrix expected = orthogonal(Matrix(rows, columns, u));
    Values first[2];
    for (const int64_t shards : {1, 2, 4}) {
      if (columns % shards != 0) continue;
      Buffer x(Dtype::kF32, {rows * columns}), y(Dtype::kF32, {rows * columns}), gram(Dtype::kF32, {side * side});
      Buffer powers(Dtype::kF32, {side * side}), sumsq(Dtype::kF32, {1});
      const Buffer plain(Dtype::kF32, {rows, columns}, u);
      Buffer whole(Dtype::kF32, {rows, columns}), result(Dtype::kF32, {rows, columns});
      MuonTensors tensors;
      tensors.x = x, tensors.y = y, tensors.gram = gram, tensors.powers = powers, tensors.sumsq = sumsq;
      const MuonMatrix matrix{.shape = {rows, columns}, .column_shards = shards};
      for (const bool triangles : {false, true}) {
        scale_matrix({.out = whole, .inp = plain, .out_shards = shards}, *stream);
        orthogonalize(tensors, matrix, Tensor(whole).flat(), *stream, triangles ? 0 : kLargestWholeSide);
        scale_matrix({.out = result, .inp = whole, .inp_shards = shards}, *stream);
        stream->synchronize();
        expect_close(fmt::format("{} x {} in {} shards, triangles {}", rows, columns, shards, triangles),
                     result.values(), expected.values, 1e-4);
        if (shards == 1) first[triangles] = result.values();
        EXPECT_EQ(result.values(), first[triangles]) << "other bits";
      }
    }
  }
}

using Weights = std::map<std::string, std::vector<float>>;

constexpr double kRate = 2e-3, kAdamwRate = 1e-3;

// The gradient of an element before clipping by half.
float gradient_of(const std::string& name, int64_t step, int64_t element) {
  return random_normal(derive_key(static_cast<uint64_t>(step), name), static_cast<uint64_t>(element));
}

// Runs steps of Muon on the ranks of one stage, which are threads. Returns the master weights.
Weights weights_after_steps(int tp, int dp, int zero, int64_t steps) {
  const Config config = [&] {
    Config c = muon_config(tp, 1, dp, zero);
    c.parallel.dp_transfers = Transfers::kCollectives;
    c.lr.peak = kRate;
    c.optimizer.adamw_lr = kAdamwRate;
    return c;
  }();
  const auto members = std::make_shared<RendezvousPoint>(tp * dp);
  std::vector<std::shared_ptr<RendezvousPoint>> dp_groups;
  for (int t = 0; t < tp; ++t) dp_groups.push_back(std::make_shared<RendezvousPoint>(dp));
  std::mutex mutex;
  Weights weights;
  const auto run = [&](int member) {
    const Mesh mesh = make_mesh(member, {{"tp", tp}, {"dp", dp}, {"pp", 1}});
    const auto device = make_cpu_device();
    const auto compute = device->make_stream("compute"), transfers = device->make_stream("dp");
    LocalCollectives all(member, tp * dp, members),
        over_dp(member / tp, dp, dp_groups[static_cast<size_t>(member % tp)]);
    GroupOnStream matrices(all, *transfers, *device, TimeCategory::kDp);
    CollectiveTransfers buckets(GroupOnStream(over_dp, *transfers, *device, TimeCategory::kDp), *device);
    OptimizerTensors tensors;
    const auto allocate = [&](Arena& arena) {
      StoreTensors store = allocate_store(config, mesh, arena);
      tensors = allocate_optimizer(config, mesh, store, arena);
      return store;
    };
    Arena measuring;
    allocate(measuring);
    Arena arena(*device, measuring.used());
    ParameterStore store({.config = config,
                          .mesh = mesh,
                          .tensors = allocate(arena),
                          .fp8 = {},
                          .num_microbatches = 1,
                          .device = *device,
                          .compute = *compute,
                          .dp = buckets});
    write_start_values(store.memory, mesh, config.run.seed, *compute);
    for (const ChunkStoreTensors& chunk : store.memory.tensors().chunks)
      for (const Tensor& state : chunk.state) compute->zero(state);
    Optimizer optimizer({.config = config,
                         .store = store,
                         .tensors = tensors,
                         .sums = {},
                         .norm_sq = {},
                         .loss = {},
                         .groups = {{"tp", &matrices}, {"pp", &matrices}},
                         .dp = buckets.collectives(),
                         .world = matrices,
                         .compute = *compute,
                         .matrices = &matrices,
                         .device = device.get()});
    compute->synchronize();
    *tensors.grad_scale.as<float>() = 0.5f;
    // Calls f(parameter, global element, element of the slice).
    const auto for_elements = [&](const BucketSlice& slice, auto f) {
      const BucketMemory& bucket = store.memory.buckets()[static_cast<size_t>(slice.bucket)];
      const FlatLayout& layout = store.memory.tensors().chunks.front().layout;
      for (const int index : bucket.bucket->parameters) {
        const ParamSpec& spec = store.memory.parameters().front()[static_cast<size_t>(index)].spec;
        for (int64_t e = 0; e < spec.local_numel(mesh); ++e) {
          const int64_t at = layout.offset[static_cast<size_t>(index)] + e - bucket.slice.begin;
          if (at >= 0 && at < bucket.slice.size) f(spec, global_index(spec, mesh, e), at);
        }
      }
    };
    for (int64_t step = 0; step < steps; ++step) {
      for (const BucketSlice& slice : store.memory.slices())
        for_elements(slice, [&](const ParamSpec& spec, int64_t global, int64_t at) {
          slice.grad.as<float>()[at] = gradient_of(spec.name, step, global);
        });
      optimizer.update(step, kRate);
      compute->synchronize();
      transfers->synchronize();
    }
    const std::lock_guard lock(mutex);
    for (const BucketSlice& slice : store.memory.slices())
      for_elements(slice, [&](const ParamSpec& spec, int64_t global, int64_t at) {
        weights[spec.name].resize(static_cast<size_t>(spec.numel()), NAN);
        weights[spec.name][static_cast<size_t>(global)] = slice.master.as<float>()[at];
      });
  };
  std::vector<std::thread> ranks;
  for (int member = 0; member < tp * dp; ++member) ranks.emplace_back(run, member);
  for (std::thread& rank : ranks) rank.join();
  return weights;
}

// One rank computes each matrix, in its own order, from parts whose bits do not depend on the layout.
TEST(Muon, equal_gradients_give_equal_bits_on_any_layout) {
  const Weights expected = weights_after_steps(1, 1, 1, 3);
  EXPECT_EQ(expected.size(), model_parameters(muon_config(1, 1, 1, 1)).size());
  for (const auto& [tp, dp, zero] :
       std::vector<std::array<int, 3>>{{1, 2, 1}, {1, 2, 0}, {2, 1, 1}, {4, 1, 0}, {2, 2, 0}, {2, 2, 2}, {4, 2, 1}})
    EXPECT_EQ(weights_after_steps(tp, dp, zero, 3), expected) << "tp " << tp << " dp " << dp << " zero " << zero;
}

// The golden: torch.optim.Muon(adjust_lr_fn="match_rms_adamw") in float64, on the same gradients, for each logical
// matrix, and torch.optim.AdamW for everything else.
TEST(Muon, twenty_steps_equal_torch_optim_muon) {
  const Config config = muon_config(1, 1, 1, 1);
  constexpr int64_t kSteps = 20;
  std::map<std::string, Values> weights, first, second;
  for (const auto& [name, values] : weights_after_steps(1, 1, 1, 0)) {
    weights[name] = Values(values.begin(), values.end());
    first[name] = second[name] = Values(values.size());
  }
  for (int64_t step = 0; step < kSteps; ++step)
    for (const ParamSpec& spec : model_parameters(config)) {
      Values &w = weights[spec.name], &m = first[spec.name], &v = second[spec.name], g(w.size());
      for (size_t i = 0; i < g.size(); ++i) g[i] = 0.5 * gradient_of(spec.name, step, static_cast<int64_t>(i));
      if (!spec.name.starts_with("layers/") || spec.shape.size() == 1) {
        const double decay = spec.shape.size() == 1 ? 0.0 : 0.1, count = static_cast<double>(step + 1);
        for (size_t i = 0; i < w.size(); ++i) {
          m[i] = 0.9 * m[i] + 0.1 * g[i];
          v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
          const double mean = m[i] / (1 - std::pow(0.9, count)), square = v[i] / (1 - std::pow(0.95, count));
          w[i] = (1 - kAdamwRate * decay) * w[i] - kAdamwRate * mean / (std::sqrt(square) + 1e-8);
        }
        continue;
      }
      for (const std::vector<int64_t>& elements : logical_elements(spec.name, spec.shape, config.model)) {
        Matrix u(static_cast<int64_t>(elements.size()) / spec.shape.back(), spec.shape.back());
        for (size_t e = 0; e < elements.size(); ++e) {
          const auto i = static_cast<size_t>(elements[e]);
          m[i] = 0.95 * m[i] + g[i];
          u.values[e] = g[i] + 0.95 * m[i];
        }
        const Matrix x = orthogonal(u);
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(u.rows, u.columns)));
        for (size_t e = 0; e < elements.size(); ++e) {
          double& weight = w[static_cast<size_t>(elements[e])];
          weight = (1 - kRate * 0.1) * weight - kRate * scale * x.values[e];
        }
      }
    }
  for (const auto& [name, values] : weights_after_steps(2, 2, 1, kSteps)) {
    const Values actual(values.begin(), values.end()), difference = minus(actual, weights[name]);
    EXPECT_LE(std::sqrt(dot(difference, difference) / dot(actual, actual)), 1e-5) << name;
  }
}

}  // namespace
}  // namespace tri::test
