#include "lib/optim/muon_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/core/dims.h"

namespace tri {
namespace {

constexpr int kMatricesPerMember = 2;  // of a window

// A rank's shard of a matrix: its runs from the beginning of the parameter.
struct MatrixShard {
  MatrixShape shape;  // of the whole matrix
  MatrixRuns runs;
  int64_t elements = 0;
};

// Returns the logical matrices of a parameter as its shards are stored.
std::vector<MatrixShard> shards_of(const ParamSpec& spec, const Mesh& mesh) {
  const std::vector<int64_t>& global = spec.shape;
  const std::vector<int64_t> local = spec.local_shape(mesh);
  const size_t dims = local.size();
  TRI_REQUIRE(dims >= 2 && (spec.experts || spec.split_dim < 0 || spec.split_dim + 2 >= static_cast<int>(dims)),
              "{}: Muon updates matrices that are split by rows or columns", spec.name);
  const int64_t rows = local[dims - 2], columns = local[dims - 1];
  const auto count = std::accumulate(local.begin(), local.end() - 2, int64_t{1}, std::multiplies());
  std::vector<MatrixShard> shards;
  const int64_t period = std::accumulate(spec.interleaved.begin(), spec.interleaved.end(), int64_t{0});
  if (period == 0) {
    for (int64_t m = 0; m < count; ++m) {
      const int64_t elements = rows * columns;
      shards.push_back({{global[dims - 2], global[dims - 1]},
                        {.offset = m * elements, .run = elements, .stride = elements},
                        elements});
    }
    return shards;
  }
  TRI_REQUIRE(count == 1 && rows % period == 0, "{}: {} rows in repetitions of {}", spec.name, rows, period);
  int64_t first = 0;
  for (const int64_t together : spec.interleaved) {
    shards.push_back({{global[dims - 2] / period * together, global[dims - 1]},
                      {.offset = first * columns, .run = together * columns, .stride = period * columns},
                      rows / period * together * columns});
    first += together;
  }
  return shards;
}

// Returns how many elements of the shard come before element `at` of the chunk's flat buffer.
int64_t elements_before(int64_t at, const MatrixRuns& runs, int64_t elements) {
  if (at <= runs.offset) return 0;
  const int64_t from = at - runs.offset;
  return std::min(from / runs.stride * runs.run + std::min(from % runs.stride, runs.run), elements);
}

std::vector<MuonMatrix> matrices_of(const ChunkStoreTensors& chunk, int index, const Mesh& mesh, bool sharded) {
  const int tp = mesh.axis("tp").size, ep = mesh.axis("ep").size;
  std::vector<MuonMatrix> matrices;
  for (size_t i = 0; i < chunk.specs.size(); ++i) {
    const ParamSpec& spec = chunk.specs[i];
    if (!spec.muon) continue;
    const auto b = static_cast<size_t>(chunk.layout.bucket_of[i]);
    const Bucket& bucket = chunk.layout.buckets[b];
    const bool by_rows = (spec.reduced - kRowAxes).empty();  // of a layer with experts
    const AxisSet over = spec.experts ? AxisSet{"edp"} : by_rows ? kRowAxes : kBucketAxes;
    TRI_REQUIRE((by_rows || mesh.divided(spec.sharded | AxisSet{"tp"}) == mesh.divided({"tp"})) &&
                    bucket.sharded_over() == mesh.divided(over) && bucket.remaining().empty(),
                "{} is sharded over {}, which Muon does not gather", spec.name, to_string(spec.sharded));
    const int places = mesh.joint_axis(over).size;
    const bool by_columns = !spec.experts && spec.split_dim + 1 == static_cast<int>(spec.shape.size());
    // A rank's own experts lie where those of the other ranks lie in their buffers.
    for (int part = 0; part < (spec.experts ? ep : 1); ++part)
      for (const MatrixShard& shard : shards_of(spec, mesh)) {
        MuonMatrix matrix{.chunk = index,
                          .bucket = b,
                          .shape = shard.shape,
                          .column_shards = by_columns ? spec.shard(mesh).size : 1,
                          .shard_elements = shard.elements,
                          .runs = shard.runs};
        matrix.runs.offset += chunk.layout.offset[i];
        matrix.first = part;
        matrix.step = spec.experts ? ep : by_rows ? 1 : tp;
        matrix.shards = spec.experts || by_rows ? 1 : tp;
        for (int place = 0; place < places; ++place) {
          const int64_t size = sharded ? bucket.size / places : bucket.size;
          const int64_t begin = bucket.first + (sharded ? place * size : 0);
          const int64_t first = elements_before(begin, matrix.runs, shard.elements);
          matrix.parts.push_back({first, elements_before(begin + size, matrix.runs, shard.elements) - first});
        }
        matrices.push_back(std::move(matrix));
      }
  }
  return matrices;
}

}  // namespace

double iteration_flops(const MatrixShape& matrix) {
  const int64_t whole_side = std::min(matrix.rows, matrix.columns);
  const auto side = static_cast<double>(whole_side);
  const auto length = static_cast<double>(std::max(matrix.rows, matrix.columns));
  return kMuonIterations * 2 * side * side * (computed_share(whole_side) * (length + side) + length);
}

std::vector<MatrixOwner> divide_matrices(const std::vector<MatrixShape>& matrices, int members) {
  std::vector<MatrixOwner> owners(matrices.size());
  const size_t in_window = members == 1 ? 1 : static_cast<size_t>(kMatricesPerMember) * members;
  std::vector<double> work(static_cast<size_t>(members), 0.0);
  for (size_t begin = 0; begin < matrices.size(); begin += in_window) {
    std::vector<size_t> order(std::min(in_window, matrices.size() - begin));
    std::iota(order.begin(), order.end(), begin);
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return iteration_flops(matrices[i]); });
    for (const size_t i : order) {
      const auto least = std::ranges::min_element(work);
      owners[i] = {static_cast<int>(begin / in_window), static_cast<int>(least - work.begin())};
      *least += iteration_flops(matrices[i]);
    }
  }
  return owners;
}

MuonPlan plan_muon(const std::vector<ChunkStoreTensors>& chunks, const Mesh& mesh, int zero) {
  static_assert(kAxes[0].name == "tp", "members are numbered along tp first");
  MuonPlan plan{.tp = mesh.axis("tp"), .dp = mesh.joint_axis(kBucketAxes), .sharded = zero >= 1, .matrices = {}};
  for (size_t c = 0; c < chunks.size(); ++c)
    for (MuonMatrix& matrix : matrices_of(chunks[c], static_cast<int>(c), mesh, plan.sharded))
      plan.matrices.push_back(std::move(matrix));
  std::vector<MatrixShape> shapes;
  for (const MuonMatrix& matrix : plan.matrices) shapes.push_back(matrix.shape);
  const std::vector<MatrixOwner> owners = divide_matrices(shapes, plan.members());
  // What each member has stored in the window. All members allocate the same memory, whose layout peers rely on.
  std::vector<int64_t> whole(static_cast<size_t>(plan.members())), parts(whole);
  for (size_t i = 0; i < owners.size(); ++i) {
    MuonMatrix& matrix = plan.matrices[i];
    matrix.owner = owners[i];
    if (i > 0 && owners[i].window != owners[i - 1].window) {
      std::ranges::fill(whole, 0);
      std::ranges::fill(parts, 0);
    }
    const int64_t elements = matrix.shape.rows * matrix.shape.columns;
    for (int member = 0; member < plan.members(); ++member) {
      const bool owns = member == matrix.owner.member;
      int64_t& used = (owns ? whole : parts)[static_cast<size_t>(member)];
      if (member == plan.member()) matrix.place = used;
      used += round_up(owns ? elements : MuonPlan::part_of(matrix, member).count, kBlock);
    }
    plan.num_windows = owners[i].window + 1;
    plan.whole_elements = std::max(plan.whole_elements, *std::ranges::max_element(whole));
    plan.part_elements = std::max(plan.part_elements, *std::ranges::max_element(parts));
    plan.largest = std::max(plan.largest, elements);
    plan.largest_side = std::max(plan.largest_side, std::min(matrix.shape.rows, matrix.shape.columns));
  }
  return plan;
}

}  // namespace tri
