// Muon: the division of matrices among ranks, where their parts lie, and its steps against float64.
#include "lib/optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/core/dims.h"
#include "kernels/ops.h"
#include "lib/config/axis_fields.h"
#include "lib/optim/lr.h"
#include "tests/kernels/op_test.h"
#include "tests/train/one_rank.h"

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
  c.data.global_batch = 8;
  c.data.micro_batch = 1;
  c.parallel.tp = tp;
  c.parallel.pp = pp;
  c.parallel.dp = dp;
  c.parallel.zero = zero;
  c.parallel.bucket_elements = 3000;
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
  EXPECT_EQ(iteration_flops({4096, 14336}), 5 * (4.0 * 4096 * 4096 * 14336 + 2.0 * 4096 * 4096 * 4096));
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
            const std::vector<int64_t> local = specs[i].local_shape(mesh);
            int64_t inner = 1, split = 1, local_split = 1, at = 0;
            const auto dim = static_cast<size_t>(specs[i].split_dim);
            for (size_t d = dim + 1; d < local.size(); ++d) inner *= local[d];
            split = specs[i].shape[dim], local_split = local[dim];
            for (int64_t e = 0; e < specs[i].local_numel(mesh); ++e, ++at) {
              const int64_t outer = e / (local_split * inner), middle = e / inner % local_split;
              const int64_t global = (outer * split + mesh.axis("tp").rank * local_split + middle) * inner + e % inner;
              const int64_t place = layout.offset[i] + e - slice.begin;
              if (place >= 0 && place < slice.size) indices[static_cast<size_t>(place)] = static_cast<double>(global);
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
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {24, 24}, {8, 48}, {48, 16}}) {
    const int64_t side = std::min(rows, columns);
    const Values u = random_values(rows * columns, "u");
    const Matrix expected = orthogonal(Matrix(rows, columns, u));
    Values first;
    for (const int64_t shards : {1, 2, 4}) {
      if (columns % shards != 0) continue;
      Buffer x(Dtype::kF32, {rows * columns}), y(Dtype::kF32, {rows * columns}), gram(Dtype::kF32, {side * side});
      Buffer powers(Dtype::kF32, {side * side}), sumsq(Dtype::kF32, {1});
      const Buffer plain(Dtype::kF32, {rows, columns}, u);
      Buffer whole(Dtype::kF32, {rows, columns}), result(Dtype::kF32, {rows, columns});
      MuonTensors tensors;
      tensors.x = x, tensors.y = y, tensors.gram = gram, tensors.powers = powers, tensors.sumsq = sumsq;
      scale_matrix({.out = whole, .inp = plain, .out_shards = shards}, *stream);
      const MuonMatrix matrix{.shape = {rows, columns}, .column_shards = shards};
      orthogonalize(tensors, matrix, Tensor(whole).flat(), *stream);
      scale_matrix({.out = result, .inp = whole, .inp_shards = shards}, *stream);
      stream->synchronize();
      expect_close(fmt::format("{} x {} in {} shards", rows, columns, shards), result.values(), expected.values, 1e-4);
      if (shards == 1) first = result.values();
      EXPECT_EQ(result.values(), first) << "other bits";
    }
  }
}

// The golden: torch.optim.Muon(adjust_lr_fn="match_rms_adamw") in float64, on the same gradients, for each logical
// matrix, and torch.optim.AdamW for everything else.
TEST(Muon, twenty_steps_equal_torch_optim_muon) {
  Config c = tiny_config();
  c.model.activation = Activation::kSwiglu;
  c.model.norm = Norm::kRmsNorm;
  c.model.position = Position::kRope;
  c.model.bias = false;
  c.model.hidden = 16;
  c.model.ffn_hidden = 24;
  c.model.heads = 4;
  c.model.kv_heads = 2;
  c.optimizer.name = OptimizerKind::kMuon;
  c.optimizer.clip = 0;
  c.optimizer.adamw_lr = 1e-3;
  c.optimizer.weight_decay = 0.1;
  c.lr.peak = 2e-3;
  c.lr.warmup_steps = 5;
  c.run.steps = 20;
  OneRank rank(c);
  std::map<std::string, Values> weights, first, second;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, values] : rank.weights()) {
    weights[name] = Values(values.begin(), values.end());
    first[name] = second[name] = Values(values.size());
  }
  for (const Parameter& parameter : rank.parameters()) shapes[parameter.spec.name] = parameter.spec.shape;
  for (int64_t step = 0; step < c.run.steps; ++step) {
    std::map<std::string, std::vector<float>> gradients;
    rank.trainer->step(step, rank.tokens(step, 0), rank.tokens(step, 1), {}, [&] { gradients = rank.gradients(); });
    const double lr = learning_rate(rank.config.lr, step), count = static_cast<double>(step + 1);
    for (auto& [name, w] : weights) {
      const std::vector<float>& g = gradients.at(name);
      Values &m = first[name], &v = second[name];
      const std::vector<int64_t>& shape = shapes[name];
      if (!name.starts_with("layers/") || shape.size() == 1) {
        const double rate = lr * 0.5, decay = shape.size() == 1 ? 0.0 : 0.1;
        for (size_t i = 0; i < w.size(); ++i) {
          m[i] = 0.9 * m[i] + 0.1 * g[i];
          v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
          const double ratio =
              m[i] / (1 - std::pow(0.9, count)) / (std::sqrt(v[i] / (1 - std::pow(0.95, count))) + 1e-8);
          w[i] = (1 - rate * decay) * w[i] - rate * ratio;
        }
        continue;
      }
      for (const std::vector<int64_t>& elements : logical_elements(name, shape, rank.config.model)) {
        Matrix u(static_cast<int64_t>(elements.size()) / shape.back(), shape.back());
        for (size_t e = 0; e < elements.size(); ++e) {
          const auto i = static_cast<size_t>(elements[e]);
          m[i] = 0.95 * m[i] + g[i];
          u.values[e] = g[i] + 0.95 * m[i];
        }
        const Matrix x = orthogonal(u);
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(u.rows, u.columns)));
        for (size_t e = 0; e < elements.size(); ++e) {
          double& weight = w[static_cast<size_t>(elements[e])];
          weight = (1 - lr * 0.1) * weight - lr * scale * x.values[e];
        }
      }
    }
  }
  for (const auto& [name, values] : rank.weights()) {
    const Values actual(values.begin(), values.end()), difference = minus(actual, weights[name]);
    EXPECT_LE(std::sqrt(dot(difference, difference) / dot(actual, actual)), 1e-5) << name;
  }
}

}  // namespace
}  // namespace tri::test
