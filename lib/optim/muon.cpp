// Muon (Jordan et al. 2024; Moonlight, arXiv 2502.16982): formulas in kernels/muon.h. State: a momentum for the
// matrices of the layers' linears; all other parameters are AdamW's.
#include "lib/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "io/base/random.h"
#include "kernels/core/timeline.h"
#include "kernels/ops.h"

namespace tri {
namespace {

// A window uses a slot from the packing of its parts to the unpacking of its results; three windows overlap.
constexpr int kSlots = 3;
constexpr float kRmsScale = 0.2f;  // makes an update's root mean square that of AdamW's (Moonlight, section 2.2)

Tensor matrix_in(const Tensor& memory, const MatrixShape& shape) {
  Tensor matrix = memory.flat(0, shape.rows * shape.columns);
  matrix.dims = 2;
  matrix.shape = {};
  matrix.shape[0] = shape.rows;
  matrix.shape[1] = shape.columns;
  return matrix;
}

}  // namespace

MuonTensors allocate_muon(const Config& config, const Mesh& mesh, const StoreTensors& store, Arena& arena) {
  if (config.optimizer.name != OptimizerKind::kMuon) return {};
  MuonTensors t{.plan = plan_muon(store.chunks, mesh, config.parallel.zero), .whole = {}, .parts = {}};
  const MuonPlan& plan = t.plan;
  const auto take = [&](int64_t elements) {
    return elements == 0 ? Tensor{} : arena.take("muon workspace", config.precision.compute, {elements});
  };
  for (int slot = 0; slot < std::min(kSlots, plan.members() == 1 ? 1 : plan.num_windows); ++slot) {
    t.whole.push_back(take(plan.whole_elements));
    t.parts.push_back(take(plan.part_elements));
  }
  t.x = take(plan.largest);
  t.y = take(plan.largest);
  t.gram = take(plan.largest_side * plan.largest_side);
  t.powers = take(plan.largest_side * plan.largest_side);
  t.sumsq = arena.take("muon workspace", Dtype::kF32, {1});
  t.no_decay = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  t.peers = arena.take("optimizer tables", Dtype::kF32, {plan.members()});
  return t;
}

void orthogonalize(const MuonTensors& t, const MuonMatrix& matrix, Tensor whole, Stream& stream,
                   int64_t largest_whole_side) {
  const MatrixShape& shape = matrix.shape;
  const bool tall = shape.rows > shape.columns;
  const int64_t side = std::min(shape.rows, shape.columns), shards = matrix.column_shards;
  Tensor x = matrix_in(t.x, shape), y = matrix_in(t.y, shape);
  const Tensor gram = matrix_in(t.gram, {side, side}), powers = matrix_in(t.powers, {side, side});
  whole = matrix_in(whole, shape);
  // The norm is that of the matrix in its own order, so its bits do not depend on the layout.
  Tensor u = whole;
  if (shards > 1) {
    scale_matrix({.out = y, .inp = whole, .sumsq = {}, .inp_shards = shards}, stream);
    u = y;
  }
  matrix_sumsq({.sumsq = t.sumsq, .inp = u.flat()}, stream);
  scale_matrix({.out = x, .inp = u, .sumsq = t.sumsq}, stream);
  for (int i = 0; i < kMuonIterations; ++i) {
    const Tensor next = i + 1 == kMuonIterations && shards == 1 ? whole : y;
    const Trans first = tall ? Trans::kYes : Trans::kNo, second = tall ? Trans::kNo : Trans::kYes;
    if (side > largest_whole_side) {
      symmetric_product({.out = gram, .a = x, .trans_a = first}, stream);
      symmetric_product({.out = powers, .a = gram, .alpha = kMuonC, .beta = kMuonB, .addend = gram}, stream);
    } else {
      gemm({.out = gram, .a = x, .b = x, .trans_a = first, .trans_b = second}, stream);
      gemm({.out = powers, .a = gram, .b = gram, .alpha = kMuonC, .beta = kMuonB, .addend = gram}, stream);
    }
    if (tall)
      gemm({.out = next, .a = x, .b = powers, .trans_b = Trans::kYes, .beta = kMuonA, .addend = x}, stream);
    else
      gemm({.out = next, .a = powers, .b = x, .beta = kMuonA, .addend = x}, stream);
    y = x;
    x = next;
  }
  if (shards > 1) scale_matrix({.out = whole, .inp = x, .sumsq = {}, .out_shards = shards}, stream);
}

void record_muon_gemms(const MuonTensors& tensors, Stream& recorder) {
  for (const MuonMatrix& matrix : tensors.plan.matrices) {
    if (!tensors.plan.owns(matrix)) continue;
    const int64_t elements = matrix.shape.rows * matrix.shape.columns;
    orthogonalize(tensors, matrix, tensors.whole.front().flat(matrix.place, elements), recorder);
  }
}

Muon::Muon(const ParameterMemory& memory, const MuonTensors& tensors, GroupOnStream& members, Device& device,
           Stream& compute)
    : memory_(memory), tensors_(tensors), members_(members) {
  const MuonPlan& plan = tensors_.plan;
  TRI_REQUIRE(members.size() == plan.members() && members.rank() == plan.member(),
              "rank {} of {} is member {} of {} of Muon's plan", members.rank(), members.size(), plan.member(),
              plan.members());
  for (const ChunkStoreTensors& chunk : memory.tensors().chunks) slices_.emplace_back(chunk.layout.buckets.size());
  for (const BucketSlice& slice : memory.slices()) {
    const BucketMemory& bucket = memory.buckets()[static_cast<size_t>(slice.bucket)];
    auto& of_chunk = slices_[static_cast<size_t>(bucket.chunk)];
    const auto& buckets = memory.tensors().chunks[static_cast<size_t>(bucket.chunk)].layout.buckets;
    of_chunk[static_cast<size_t>(bucket.bucket - buckets.data())] = &slice;
  }
  windows_.resize(static_cast<size_t>(plan.num_windows));
  std::vector<const BucketSlice*> seen;
  for (const MuonMatrix& matrix : plan.matrices) {
    Window& window = windows_[static_cast<size_t>(matrix.owner.window)];
    window.matrices.push_back(&matrix);
    add_messages(matrix, window);
  }
  for (auto window = windows_.rbegin(); window != windows_.rend(); ++window)
    for (const MuonMatrix* matrix : window->matrices) {
      const BucketSlice* slice = &slice_of(*matrix);
      if (std::ranges::find(seen, slice) != seen.end()) continue;
      seen.push_back(slice);
      window->finished.push_back(slice);
    }
  for (int i = 0; i < 2; ++i) {
    arrived_.push_back(device.make_event());
    returned_.push_back(device.make_event());
  }
  const std::vector<float> excluded(static_cast<size_t>(tensors_.no_decay.numel()), -1.0f);
  compute.copy(tensors_.no_decay.data, excluded.data(), tensors_.no_decay.bytes());
  compute.zero(tensors_.sumsq);
  if (plan.members() > 1) {
    std::vector<CommGroup::Message> sends, recvs;
    for (int peer = 0; peer < plan.members(); ++peer) {
      if (peer == plan.member()) continue;
      sends.push_back({tensors_.sumsq, peer});
      recvs.push_back({tensors_.peers.flat(peer, 1), peer});
    }
    members_.after(compute);
    members_.exchange(sends, recvs);
    members_.before(compute);
  }
  compute.synchronize();
}

const BucketSlice& Muon::slice_of(const MuonMatrix& matrix) const {
  return *slices_[static_cast<size_t>(matrix.chunk)][matrix.bucket];
}

Tensor Muon::whole_of(const MuonMatrix& matrix) const {
  const Tensor& slot = tensors_.whole[static_cast<size_t>(matrix.owner.window) % tensors_.whole.size()];
  return slot.flat(matrix.place, matrix.shape.rows * matrix.shape.columns);
}

// This member's part of a matrix, packed; in the whole matrix if the member owns it.
Tensor Muon::own_part(const MuonMatrix& matrix) const {
  const MuonPlan& plan = tensors_.plan;
  const MatrixPart part = MuonPlan::part_of(matrix, plan.member());
  const int64_t shard = plan.member() % matrix.step - matrix.first;
  if (plan.owns(matrix))
    return whole_of(matrix).flat(part.count == 0 ? 0 : shard * matrix.shard_elements + part.first, part.count);
  const Tensor& slot = tensors_.parts[static_cast<size_t>(matrix.owner.window) % tensors_.parts.size()];
  return slot.flat(matrix.place, part.count);
}

// Where this member's part lies in its slice.
MatrixRuns Muon::own_runs(const MuonMatrix& matrix) const {
  const BucketMemory& bucket = memory_.buckets()[static_cast<size_t>(slice_of(matrix).bucket)];
  MatrixRuns runs = matrix.runs;
  runs.offset -= bucket.slice.begin;
  runs.first = MuonPlan::part_of(matrix, tensors_.plan.member()).first;
  return runs;
}

// Members send and receive in the order of the plan's matrices, so the messages of a pair match.
void Muon::add_messages(const MuonMatrix& matrix, Window& window) {
  const MuonPlan& plan = tensors_.plan;
  if (!plan.owns(matrix)) {
    if (MuonPlan::part_of(matrix, plan.member()).count == 0) return;
    const CommGroup::Message message{own_part(matrix), matrix.owner.member};
    if (plan.sends(matrix, plan.member() / matrix.step)) window.parts_out.push_back(message);
    window.results_in.push_back(message);
    return;
  }
  for (int place = 0; place < static_cast<int>(matrix.parts.size()); ++place)
    for (int shard = 0; shard < matrix.shards; ++shard) {
      const MatrixPart& part = matrix.parts[static_cast<size_t>(place)];
      const int peer = matrix.first + place * matrix.step + shard;
      if (part.count == 0 || peer == plan.member()) continue;
      const CommGroup::Message message{whole_of(matrix).flat(shard * matrix.shard_elements + part.first, part.count),
                                       peer};
      if (plan.sends(matrix, place)) window.parts_in.push_back(message);
      window.results_out.push_back(message);
    }
}

void Muon::exchange(const std::vector<CommGroup::Message>& out, const std::vector<CommGroup::Message>& in, Event& done,
                    Stream& compute) {
  if (tensors_.plan.members() == 1) return;
  members_.after(compute);  // the exchange waits for the packed parts, or for the results
  members_.exchange(out, in);
  members_.stream().record(done);
}

void Muon::pack(size_t window, const Update& u) {
  for (const MuonMatrix* matrix : windows_[window].matrices)
    if (tensors_.plan.sends(*matrix, tensors_.plan.member() / matrix->step))
      if (const Tensor part = own_part(*matrix); part.numel() > 0)
        pack_matrix({.out = part, .inp = slice_of(*matrix).grad, .runs = own_runs(*matrix)}, u.stream);
  exchange(windows_[window].parts_out, windows_[window].parts_in, *arrived_[window % 2], u.stream);
}

// Applies the results, and publishes the slices that are complete.
void Muon::unpack(size_t window, const Update& u) {
  if (tensors_.plan.members() > 1) {
    const TimeCategoryScope scope(u.stream, members_.category());
    u.stream.wait(*returned_[window % 2]);
  }
  for (const MuonMatrix* matrix : windows_[window].matrices) {
    const Tensor part = own_part(*matrix);
    if (part.numel() == 0) continue;
    const auto longest = static_cast<float>(std::max(matrix->shape.rows, matrix->shape.columns));
    unpack_matrix({.out = slice_of(*matrix).grad,
                   .inp = part,
                   .master = slice_of(*matrix).master,
                   .runs = own_runs(*matrix),
                   .scale = kRmsScale * std::sqrt(longest),
                   .decay = static_cast<float>(u.config.weight_decay)},
                  u.stream);
  }
  for (const BucketSlice* slice : windows_[window].finished) {
    lamb_apply({.master = slice->master,
                .param = slice->param,
                .quantized = slice->quantized,
                .direction = slice->grad,
                .weight_sumsq = u.tensor_sums[0],
                .direction_sumsq = u.tensor_sums[0],
                .grad_scale = u.grad_scale,
                .block_tensor = slice->block_tensor,
                .decay = tensors_.no_decay,
                .lr = u.lr},
               u.stream);
    u.publish(*slice);
  }
}

void Muon::update(const Update& u) {
  u.stream.zero(u.tensor_sums[0]);  // no trust ratio
  for (const auto& of_chunk : slices_)
    for (const BucketSlice* slice : of_chunk) {
      if (slice->state.size() != 1) continue;
      momentum_update({.momentum = slice->state[0],
                       .grad = slice->grad,
                       .grad_scale = u.grad_scale,
                       .block_tensor = slice->block_tensor,
                       .mu = static_cast<float>(u.config.momentum),
                       .rounding = u.rounding(*slice)},
                      u.stream);
    }
  if (!windows_.empty()) pack(0, u);
  for (size_t w = 0; w < windows_.size(); ++w) {
    if (tensors_.plan.members() > 1) {
      if (w + 1 < windows_.size()) pack(w + 1, u);
      const TimeCategoryScope scope(u.stream, members_.category());
      u.stream.wait(*arrived_[w % 2]);
    }
    for (const MuonMatrix* matrix : windows_[w].matrices)
      if (tensors_.plan.owns(*matrix)) orthogonalize(tensors_, *matrix, whole_of(*matrix), u.stream);
    exchange(windows_[w].results_out, windows_[w].results_in, *returned_[w % 2], u.stream);
    if (tensors_.plan.members() == 1) {
      unpack(w, u);
      if (w + 1 < windows_.size()) pack(w + 1, u);
    } else if (w > 0) {
      unpack(w - 1, u);
    }
  }
  if (tensors_.plan.members() > 1 && !windows_.empty()) unpack(windows_.size() - 1, u);
}

void update_muon(const Update& u) {
  for (const BucketSlice& slice : u.slices()) {
    if (slice.state.size() != 2) continue;
    adamw_update(
        {.moments = u.adam_moments(slice), .param = slice.param, .quantized = slice.quantized, .lr = u.adamw_lr},
        u.stream);
    u.publish(slice);
  }
  u.muon->update(u);
}

}  // namespace tri
