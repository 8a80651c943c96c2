#include "lib/model/moe.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/dims.h"
#include "kernels/ops.h"
#include "lib/comm/groups/group_on_stream.h"
#include "lib/model/branch.h"
#include "lib/model/moe_transfers.h"

namespace tri {
namespace {

LinearSpec whole_linear(std::string_view module, std::string_view name, LinearSplit split, int64_t outputs,
                        int64_t inputs) {
  return {.module = module, .name = name, .split = split, .outputs = {outputs}, .inputs = inputs, .whole = true};
}

LinearSpec first_linear(std::string_view module, std::string_view name, int64_t ffn, int64_t hidden, bool gated) {
  LinearSpec linear = whole_linear(module, name, LinearSplit::kColumn, ffn, hidden);
  if (gated) {  // gate first, then up
    linear.outputs = {2, ffn};
    linear.num_outputs = 2;
  }
  return linear;
}

}  // namespace

LinearSpec MoeSpec::router() const {
  LinearSpec linear = whole_linear(modules::kRouter, "router", LinearSplit::kColumn, experts, hidden);
  linear.orthogonal = linear.fp8 = false;
  return linear;
}

std::vector<ModuleSpec> MoeSpec::modules() const {
  std::vector<ModuleSpec> all{router()};
  if (shared_hidden > 0) {
    all.emplace_back(first_linear(modules::kSharedFc1, "shared fc1", shared_hidden, hidden, gated()));
    all.emplace_back(whole_linear(modules::kSharedFc2, "shared fc2", LinearSplit::kRow, hidden, shared_hidden));
  }
  LinearSpec fc1 = first_linear(modules::kExpertsFc1, "experts fc1", expert_hidden, hidden, gated());
  LinearSpec fc2 = whole_linear(modules::kExpertsFc2, "experts fc2", LinearSplit::kRow, hidden, expert_hidden);
  for (LinearSpec* linear : {&fc1, &fc2}) {
    linear->experts = experts;
    linear->active = per_token;
    all.emplace_back(*linear);
  }
  return all;
}

int64_t MoeSpec::widest_output(int) const {
  return std::max({experts, width_of(expert_hidden), width_of(shared_hidden), hidden});
}

double MoeSpec::activation_elements(Pass pass) const {
  const auto of = [&](int64_t ffn) { return (pass == Pass::kForward ? 1 : 2) * width_of(ffn) + ffn; };
  return static_cast<double>(per_token * of(expert_hidden) + of(shared_hidden));
}

int64_t expert_rows(const MoeSpec& moe, int64_t local_rows, int ep, double capacity) {
  const int64_t balanced = local_rows * moe.per_token;
  if (ep == 1) return balanced;
  // A row needs an expert at most once.
  const int64_t most = ep * local_rows * std::min(moe.per_token, moe.experts / ep);
  const auto planned = static_cast<int64_t>(std::ceil(capacity * static_cast<double>(balanced)));
  return std::clamp(round_up(planned, kFp8Multiple), int64_t{1}, most);
}

// Pairs go to the ranks of ep one after the other. If ep does not divide their number, some ranks receive one pair more
// from a source than others do; sources begin at different ranks, so that the sums over all sources are equal.
std::vector<int32_t> experts_in_turn(const MoeSpec& moe, int64_t local_rows, Axis ep) {
  const int64_t pairs = local_rows * moe.per_token, of_rank = moe.experts / ep.size;
  std::vector<int32_t> experts;
  experts.reserve(static_cast<size_t>(pairs));
  for (int64_t i = ep.rank; i < ep.rank + pairs; ++i)
    experts.push_back(static_cast<int32_t>(i % ep.size * of_rank + i / ep.size % of_rank));
  return experts;
}

std::string to_string(const RowShortage& s, const Config& config) {
  const ModelConfig& m = config.model;
  const ParallelConfig& p = config.parallel;
  const int64_t of_rank = m.experts / p.ep;
  const int64_t rows = int64_t{config.data.micro_batch} * m.seq_len / p.cp / p.tp,
                balanced = rows * m.experts_per_token;
  const auto most = static_cast<double>(p.ep * rows * std::min<int64_t>(m.experts_per_token, of_rank));
  return fmt::format(
      "layer {}: {} rows of a microbatch chose experts {} to {}, which are on one rank (expert {} alone {}), but "
      "parallel.ep_capacity {:g} has memory for {}; set parallel.ep_capacity to {:.1f} or more, raise model.aux_loss, "
      "or lower parallel.ep",
      s.layer, s.rows, s.first_expert, s.first_expert + of_rank - 1, s.fullest_expert, s.fullest_rows, p.ep_capacity,
      expert_rows({.experts = m.experts, .per_token = m.experts_per_token}, rows, p.ep, p.ep_capacity),
      std::ceil(10 * std::min(1.2 * static_cast<double>(s.rows), most) / static_cast<double>(balanced)) / 10);
}

void allocate_tensors(const MoeSpec& moe, const BranchMemory& m, LayerTensors& tensors) {
  const StageDims& d = m.dims;
  const int ep = m.config.parallel.ep;
  const Recompute recompute = m.config.parallel.recompute;
  const bool saves_activated = m.fp8 ? keeps_activated(recompute) : recompute != Recompute::kSelective;
  const int64_t K = moe.per_token, pairs = d.Rl * K, P = expert_rows(moe, d.Rl, ep, m.config.parallel.ep_capacity);
  MoeTensors& t = tensors.moe;
  t.logits = m.take(Dtype::kF32, {d.Rl, moe.experts});
  t.experts = m.take(Dtype::kI32, {d.Rl, K});
  t.weights = m.take(Dtype::kF32, {d.Rl, K});
  if (m.config.model.aux_loss > 0) t.all_counts = m.take(Dtype::kF32, {moe.experts});
  t.place = m.take(Dtype::kI32, {d.Rl, K});
  t.pair = m.take(Dtype::kI32, {pairs});
  t.offsets = t.rank_offsets = m.take(Dtype::kI32, {moe.experts + 1});
  if (ep > 1) {
    t.rank_offsets = m.take(Dtype::kI32, {moe.experts / ep + 1});
    if (ep_by_copies(m.config)) {
      t.first = m.take(Dtype::kI32, {moe.experts});
      t.origin = m.take(Dtype::kI32, {P});
    } else {
      t.arrived_place = m.take(Dtype::kI32, {P});
      t.arrived_pair = m.take(Dtype::kI32, {P});
    }
  }
  t.rows = m.take(m.fp8 ? Dtype::kE4M3 : d.dtype, {P, moe.hidden});
  t.fc1 = m.take(d.dtype, {P, moe.width_of(moe.expert_hidden)});
  if (saves_activated && !m.fp8) t.activated = m.take(d.dtype, {P, moe.expert_hidden});
  if (saves_activated && m.fp8) t.activated_t = m.take(Dtype::kE4M3, {moe.expert_hidden, P});
  t.returned = m.take(d.dtype, {pairs, moe.hidden});
  if (moe.shared_hidden > 0) {
    t.shared_fc1 = m.take(d.dtype, {d.Rl, moe.width_of(moe.shared_hidden)});
    if (saves_activated && !m.fp8) t.shared_activated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
    if (saves_activated && m.fp8) t.shared_activated_t = m.take(Dtype::kE4M3, {moe.shared_hidden, d.Rl});
  }
  t.route = std::make_shared<MoeRoute>();
}

namespace {

void allocate_fp8(const MoeSpec& moe, const BranchMemory& m, int64_t P, MoeWorkspace::Fp8& w) {
  const StageDims& d = m.dims;
  const Dtype gradient = m.config.precision.fp8_gradients;
  const int64_t fc1 = moe.width_of(moe.expert_hidden), shared_fc1 = moe.width_of(moe.shared_hidden);
  w.rows = m.take(Dtype::kE4M3, {d.Rl, moe.hidden});
  w.activated = m.take(Dtype::kE4M3, {P, moe.expert_hidden});
  w.dreturned = w.dout = m.take(gradient, {d.Rl * moe.per_token, moe.hidden});
  if (m.config.parallel.ep > 1) w.dout = m.take(gradient, {P, moe.hidden});
  w.dfc1 = m.take(gradient, {P, fc1});
  w.dfc1_t = m.take(gradient, {fc1, P});
  w.transpose = m.take(Dtype::kE4M3, {moe.hidden * P});
  if (moe.shared_hidden == 0) return;
  w.shared_activated = m.take(Dtype::kE4M3, {d.Rl, moe.shared_hidden});
  w.shared_dout = m.take(gradient, {d.Rl, moe.hidden});
  w.shared_dout_t = m.take(gradient, {moe.hidden, d.Rl});
  w.shared_dfc1 = m.take(gradient, {d.Rl, shared_fc1});
  w.shared_dfc1_t = m.take(gradient, {shared_fc1, d.Rl});
  w.shared_inp_t = m.take(Dtype::kE4M3, {moe.hidden * d.Rl});
}

}  // namespace

void allocate_workspace(const MoeSpec& moe, const BranchMemory& m, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const int ep = m.config.parallel.ep;
  const int64_t K = moe.per_token, pairs = d.Rl * K, P = expert_rows(moe, d.Rl, ep, m.config.parallel.ep_capacity);
  MoeWorkspace& w = work.moe;
  w.counts = m.take(Dtype::kF32, {moe.experts});
  w.share_sums = m.take(Dtype::kF32, {moe.experts + 1});
  w.dreturned = w.dout = m.take(d.dtype, {pairs, moe.hidden});
  if (ep > 1) {
    w.all_offsets = m.take(Dtype::kI32, {ep, moe.experts + 1});
    w.sent = m.take(d.dtype, {pairs, moe.hidden});
    w.out = m.take(d.dtype, {P, moe.hidden});
    w.dout = m.take(d.dtype, {P, moe.hidden});
    if (ep_by_copies(m.config)) {
      w.all_pairs = m.take(Dtype::kI32, {ep, pairs});
      w.tokens = m.take(d.dtype, {ep * d.Rl, moe.hidden});
      w.all_weights = m.take(Dtype::kF32, {ep * d.Rl, K});
    } else {
      w.arrived_counts = m.take(Dtype::kI32, {ep, moe.experts / ep});
      w.arrived = m.take(d.dtype, {P, moe.hidden});
    }
  }
  if (m.config.parallel.recompute == Recompute::kSelective) {
    w.activated = m.take(d.dtype, {P, moe.expert_hidden});
    if (moe.shared_hidden > 0) w.shared_activated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
  }
  w.dactivated = m.take(d.dtype, {P, moe.expert_hidden});
  w.dfc1 = m.take(d.dtype, {P, moe.width_of(moe.expert_hidden)});
  w.drows = m.take(d.dtype, {P, moe.hidden});
  w.dweights = m.take(Dtype::kF32, {d.Rl, K});
  w.dlogits = m.take(d.dtype, {d.Rl, moe.experts});
  if (any_fp8_layer(m.config)) allocate_fp8(moe, m, P, w.fp8);
  if (moe.shared_hidden == 0) return;
  w.shared_dfc1 = m.take(d.dtype, {d.Rl, moe.width_of(moe.shared_hidden)});
  w.shared_dactivated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
}

// fc2's weight gradients are computed with the input gradients.
void allocate_due(const MoeSpec& moe, const BranchMemory& m, LayerTensors& inputs, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const Recompute recompute = m.config.parallel.recompute;
  const int64_t P = expert_rows(moe, d.Rl, m.config.parallel.ep, m.config.parallel.ep_capacity);
  if (recompute == Recompute::kFull) allocate_tensors(moe, m, inputs);
  const bool recomputed = m.fp8 ? !keeps_activated(recompute) : recompute == Recompute::kSelective;
  const bool activated = recomputed && moe.shared_hidden > 0;
  if (activated && m.fp8) inputs.moe.shared_activated_t = m.take(Dtype::kE4M3, {moe.shared_hidden, d.Rl});
  if (activated && !m.fp8) inputs.moe.shared_activated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
  MoeWorkspace& w = work.moe;
  w.dlogits = m.take(d.dtype, {d.Rl, moe.experts});
  const int64_t fc1 = moe.width_of(moe.expert_hidden), shared_fc1 = moe.width_of(moe.shared_hidden);
  if (m.fp8) {
    const Dtype gradient = m.config.precision.fp8_gradients;
    w.fp8.dfc1_t = m.take(gradient, {fc1, P});
    if (moe.shared_hidden == 0) return;
    w.fp8.shared_dout_t = m.take(gradient, {moe.hidden, d.Rl});
    w.fp8.shared_dfc1_t = m.take(gradient, {shared_fc1, d.Rl});
    return;
  }
  w.dfc1 = m.take(d.dtype, {P, fc1});
  if (moe.shared_hidden > 0) w.shared_dfc1 = m.take(d.dtype, {d.Rl, shared_fc1});
}

Result<void> load_router_bias(const std::vector<float>& saved, const Tensor& bias, Stream& stream) {
  if (bias.empty() || saved.empty()) return {};
  if (static_cast<int64_t>(saved.size()) != bias.numel())
    return file_error(
        "the checkpoint has router biases of {} experts, but the model has {}; set model.experts, model.layers and "
        "model.dense_layers as in the checkpoint's config",
        saved.size(), bias.numel());
  stream.copy(bias.data, saved.data(), bias.bytes());
  stream.synchronize();
  return {};
}

MoeTensors with_workspace(MoeTensors t, const MoeWorkspace& work, bool fp8) {
  if (!fp8) {
    if (t.activated.empty()) t.activated = work.activated;
    if (t.shared_activated.empty()) t.shared_activated = work.shared_activated;
    return t;
  }
  t.activated = work.fp8.activated;
  t.shared_activated = work.fp8.shared_activated;
  const auto transposed = [](Tensor tensor) { return tensor.view({tensor[1], tensor[0]}); };
  if (t.activated_t.empty()) t.activated_t = transposed(t.activated);
  if (t.shared_activated_t.empty() && !t.shared_activated.empty())
    t.shared_activated_t = transposed(t.shared_activated);
  return t;
}

namespace {

class MoeLayer final : public BranchLayer {
 public:
  MoeLayer(const LayerSpec& spec, int layer, const std::vector<Parameter>& parameters)
      : spec_(spec.moe),
        rows_(spec.moe, layer),
        fp8_(spec.fp8),
        router_(find_weight(parameters, modules::kRouter, layer)),
        fc1_{id_of(spec, layer, modules::kExpertsFc1), find_weight(parameters, modules::kExpertsFc1, layer)},
        fc2_{id_of(spec, layer, modules::kExpertsFc2), find_weight(parameters, modules::kExpertsFc2, layer)} {
    if (spec_.shared_hidden == 0) return;
    shared_fc1_ = {id_of(spec, layer, modules::kSharedFc1), find_weight(parameters, modules::kSharedFc1, layer)};
    shared_fc1_.linear.input = fc1_.linear.input;  // the same rows
    shared_fc2_ = {id_of(spec, layer, modules::kSharedFc2), find_weight(parameters, modules::kSharedFc2, layer)};
  }

  // The router, the transfers of the rows to the experts, and fc1.
  void column_forward(const LayerContext& ctx, const LayerTensors& tensors, Tensor normed) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const Tensor rows = own_rows(ctx, normed), read = fp8_ ? rows_.own(ctx, ctx.work.moe.fp8.rows) : rows;
    if (fp8_) ctx.fp8->cast_for(ctx.moe->ep, Fp8Operand::kInput, fc1_.linear, rows, read);
    if (rows_.by_copies(ctx)) rows_.share_tokens(ctx, read, {});
    gemm({.out = t.logits, .a = rows, .b = as_matrix(ctx.use(*router_), spec_.hidden), .trans_b = Trans::kYes},
         ctx.compute);
    route(ctx, t);
    rows_.begin_dispatch(ctx, t, read);
    if (has_shared()) {  // while rows arrive
      if (fp8_)
        ctx.fp8->forward(shared_fc1_, t.shared_fc1, read, 0.0f, {});
      else
        gemm({.out = t.shared_fc1,
              .a = rows,
              .b = as_matrix(ctx.use(*shared_fc1_.weight), spec_.hidden),
              .trans_b = Trans::kYes},
             ctx.compute);
    }
    rows_.finish_dispatch(ctx, t, read.dtype);
    if (fp8_) return ctx.fp8->experts_forward(fc1_, t.fc1, t.rows, t.rank_offsets);
    grouped_forward({.out = t.fc1, .inp = t.rows, .weight = expert_weight(ctx, fc1_), .offsets = t.rank_offsets},
                    ctx.compute);
  }

  void recompute(const LayerContext& ctx, const LayerTensors& t) const override {
    if (!keeps_activated(ctx.config.parallel.recompute)) inner_forward(ctx, t, Inner::kRecomputed);
  }

  // FP8: as in mlp.cpp, a forward pass makes the rows that fc2 reads, and the transpose if it is saved.
  void inner_forward(const LayerContext& ctx, const LayerTensors& tensors, Inner inner) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    if (!fp8_) {
      activation_forward({.kind = spec_.activation, .out = t.activated, .inp = t.fc1, .used = rows_.used(ctx, t)},
                         ctx.compute);
      if (has_shared())
        activation_forward({.kind = spec_.activation, .out = t.shared_activated, .inp = t.shared_fc1}, ctx.compute);
      return;
    }
    const MoeWorkspace& w = ctx.work.moe;
    const bool again = inner != Inner::kForward, transposes = again || keeps_activated(ctx.config.parallel.recompute);
    ctx.fp8->activation_forward(spec_.activation, fc2_.linear, again ? Tensor{} : t.activated,
                                transposes ? t.activated_t : Tensor{}, t.fc1, w.dactivated, rows_.used(ctx, t));
    if (has_shared())
      ctx.fp8->activation_forward(spec_.activation, shared_fc2_.linear, again ? Tensor{} : t.shared_activated,
                                  transposes ? t.shared_activated_t : Tensor{}, t.shared_fc1, w.shared_dactivated);
  }

  // fc2, the way back, and the weighted sum, in the local rows of work.partial.
  void row_forward(const LayerContext& ctx, const LayerTensors& tensors, const PartialSums&) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor out = ctx.local_rows(ctx.work.partial), of_experts = rows_.is_divided(ctx) ? w.out : t.returned;
    ctx.tp.wait_until_read(ctx.compute);
    if (fp8_)
      ctx.fp8->experts_forward(fc2_, of_experts, t.activated, t.rank_offsets);
    else
      grouped_forward(
          {.out = of_experts, .inp = t.activated, .weight = expert_weight(ctx, fc2_), .offsets = t.rank_offsets},
          ctx.compute);
    rows_.begin_return(ctx, t, of_experts, t.returned);
    if (has_shared()) {
      if (fp8_)
        ctx.fp8->forward(shared_fc2_, out, t.shared_activated, 0.0f, {});
      else
        gemm({.out = out,
              .a = t.shared_activated,
              .b = as_matrix(ctx.use(*shared_fc2_.weight), spec_.shared_hidden),
              .trans_b = Trans::kYes},
             ctx.compute);
    }
    rows_.finish_return(ctx, t, of_experts, t.returned);
    combine_rows({.out = out,
                  .rows = t.returned,
                  .place = t.place,
                  .weights = t.weights,
                  .addend = has_shared() ? out : Tensor{}},
                 ctx.compute);
  }

  void row_gradient(const LayerContext& ctx, const LayerTensors& tensors) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor dout = ctx.local_rows(ctx.work.dbranch), dreturned = rows_.pairs(ctx, w.dreturned);
    if (rows_.by_copies(ctx)) rows_.share_tokens(ctx, dout, t.weights);
    combine_backward({.drows = rows_.by_copies(ctx) ? Tensor{} : dreturned,
                      .dweights = rows_.own(ctx, w.dweights),
                      .dout = dout,
                      .rows = t.returned,
                      .place = t.place,
                      .weights = t.weights},
                     ctx.compute);
    if (!rows_.by_copies(ctx)) {
      if (fp8_) ctx.fp8->cast_for(ctx.moe->ep, Fp8Operand::kGradient, fc2_.linear, dreturned, w.fp8.dreturned);
      if (rows_.is_divided(ctx)) {
        const Tensor sent = fp8_ ? w.fp8.dreturned : dreturned;
        rows_.send_to_experts(ctx, t, sent);
      }
    }
    if (has_shared()) {
      if (fp8_) {
        ctx.fp8->cast(Fp8Operand::kGradient, shared_fc2_.linear, dout, w.fp8.shared_dout, w.fp8.shared_dout_t);
        ctx.fp8->backward_input(shared_fc2_, rows_.own(ctx, w.shared_dactivated), w.fp8.shared_dout, 0.0f);
      } else {
        gemm({.out = rows_.own(ctx, w.shared_dactivated),
              .a = dout,
              .b = as_matrix(ctx.use(*shared_fc2_.weight), spec_.shared_hidden)},
             ctx.compute);
      }
    }
    if (rows_.by_copies(ctx)) {
      rows_.take_rows(ctx, t, ctx.dims.dtype, w.dout, rows_.own_of_all(ctx, w.all_weights));
      if (fp8_)
        ctx.fp8->cast_for(ctx.moe->ep, Fp8Operand::kGradient, fc2_.linear, w.dout, w.fp8.dout, rows_.used(ctx, t));
    } else if (rows_.is_divided(ctx)) {
      rows_.sort_arrived(ctx, t, fp8_ ? w.fp8.dout : w.dout);
    }
    if (fp8_) return ctx.fp8->experts_backward_input(fc2_, w.dactivated, w.fp8.dout, t.rank_offsets);
    grouped_input_gradient(
        {.dinp = w.dactivated, .dout = w.dout, .weight = expert_weight(ctx, fc2_), .offsets = t.rank_offsets},
        ctx.compute);
  }

  void inner_backward(const LayerContext& ctx, const LayerTensors& tensors) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    if (fp8_) {
      ctx.fp8->activation_backward(spec_.activation, fc1_.linear, w.fp8.dfc1, w.fp8.dfc1_t, {}, w.dactivated, t.fc1,
                                   w.dfc1, rows_.used(ctx, t));
      if (has_shared())
        ctx.fp8->activation_backward(spec_.activation, shared_fc1_.linear, w.fp8.shared_dfc1, w.fp8.shared_dfc1_t, {},
                                     rows_.own(ctx, w.shared_dactivated), t.shared_fc1, rows_.own(ctx, w.shared_dfc1));
    } else {
      activation_backward(
          {.kind = spec_.activation, .dinp = w.dfc1, .dout = w.dactivated, .inp = t.fc1, .used = rows_.used(ctx, t)},
          ctx.compute);
      if (has_shared())
        activation_backward({.kind = spec_.activation,
                             .dinp = rows_.own(ctx, w.shared_dfc1),
                             .dout = rows_.own(ctx, w.shared_dactivated),
                             .inp = t.shared_fc1},
                            ctx.compute);
    }
    const MoeRun& run = *ctx.moe;
    router_backward({.dlogits = rows_.own(ctx, w.dlogits),
                     .dweights = rows_.own(ctx, w.dweights),
                     .logits = t.logits,
                     .experts = t.experts,
                     .counts = t.all_counts,
                     .rule = spec_.rule,
                     .aux_scale = aux_scale(ctx, run),
                     .z_scale = z_scale(ctx, run)},
                    ctx.compute);
    // The layer's own tensors are not at hand when the weights' gradients are computed.
    current_ = t;
  }

  // Rows return while the gradient of fc2's weights is computed.
  void column_gradient(const LayerContext& ctx, const PartialSums&) const override {
    const MoeTensors& t = current_;
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor out = ctx.local_rows(ctx.work.dnormed);
    ctx.tp.wait_until_read(ctx.compute);
    if (fp8_)
      ctx.fp8->experts_backward_input(fc1_, w.drows, w.fp8.dfc1, t.rank_offsets);
    else
      grouped_input_gradient(
          {.dinp = w.drows, .dout = w.dfc1, .weight = expert_weight(ctx, fc1_), .offsets = t.rank_offsets},
          ctx.compute);
    const Tensor returned = rows_.is_divided(ctx) ? rows_.pairs(ctx, w.sent) : w.drows;
    rows_.begin_concurrent_return(ctx, t, w.drows, returned);
    gemm({.out = out, .a = rows_.own(ctx, w.dlogits), .b = as_matrix(ctx.use(*router_), spec_.hidden)}, ctx.compute);
    if (has_shared()) {
      if (fp8_)
        ctx.fp8->backward_input(shared_fc1_, out, w.fp8.shared_dfc1, 1.0f);
      else
        gemm({.out = out,
              .a = rows_.own(ctx, w.shared_dfc1),
              .b = as_matrix(ctx.use(*shared_fc1_.weight), spec_.hidden),
              .beta = 1.0f},
             ctx.compute);
    }
    fc2_gradient(ctx, t);
    rows_.finish_concurrent_return(ctx);
    combine_rows({.out = out, .rows = returned, .place = t.place, .weights = {}, .addend = out}, ctx.compute);
  }

  void row_weight(const LayerContext& ctx, const LayerTensors& tensors) const override {
    if (!has_shared()) return;
    const MoeTensors t = first_rows(ctx, tensors.moe);
    if (fp8_) return fp8_gradient(ctx, shared_fc2_, ctx.work.moe.fp8.shared_dout_t, t.shared_activated_t);
    gradient(ctx, *shared_fc2_.weight, ctx.local_rows(ctx.work.dbranch), t.shared_activated);
  }

  void resume(const LayerContext& ctx, const LayerTensors& tensors) const override {
    current_ = first_rows(ctx, tensors.moe);
  }

  void column_weight(const LayerContext& ctx, Tensor normed) const override {
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor rows = own_rows(ctx, normed);
    const MoeTensors& t = current_;
    if (fp8_) {
      fp8_expert_gradient(ctx, fc1_, w.fp8.dfc1_t, ctx.fp8->transposed(t.rows, w.fp8.transpose, rows_.used(ctx, t)),
                          t.rank_offsets);
      if (has_shared())
        fp8_gradient(ctx, shared_fc1_, w.fp8.shared_dfc1_t,
                     ctx.fp8->cast_transposed(shared_fc1_.linear, rows, w.fp8.shared_inp_t));
    } else {
      expert_gradient(ctx, *fc1_.weight, w.dfc1, t.rows, t.rank_offsets);
      if (has_shared()) gradient(ctx, *shared_fc1_.weight, rows_.own(ctx, w.shared_dfc1), rows);
    }
    gradient(ctx, *router_, rows_.own(ctx, w.dlogits), rows);
  }

  const ColumnLinear& column_linear() const override { return column_; }
  const RowLinear& row_linear() const override { return row_; }

 private:
  static LinearId id_of(const LayerSpec& spec, int layer, std::string_view module) {
    const std::vector<LinearSpec> linears = spec.linears(Branch::kMlp);
    const auto at = std::ranges::find(linears, module, &LinearSpec::module);
    TRI_REQUIRE(at != linears.end(), "layer {} has no linear {}", layer, module);
    return spec.id(layer, Branch::kMlp, *at);
  }
  bool has_shared() const { return spec_.shared_hidden > 0; }
  Tensor own_rows(const LayerContext& ctx, Tensor normed) const {
    return normed[0] == ctx.dims.Rl ? normed : ctx.local_rows(normed);
  }
  MoeTensors first_rows(const LayerContext& ctx, MoeTensors t) const {
    for (Tensor* tensor : {&t.logits, &t.experts, &t.weights, &t.place, &t.shared_fc1, &t.shared_activated})
      if (!tensor->empty()) *tensor = rows_.own(ctx, *tensor);
    for (Tensor* tensor : {&t.pair, &t.returned}) *tensor = rows_.pairs(ctx, *tensor);
    if (!rows_.is_divided(ctx))
      for (Tensor* tensor : {&t.rows, &t.fc1, &t.activated})
        if (!tensor->empty()) *tensor = rows_.pairs(ctx, *tensor);
    return t;
  }
  Tensor expert_weight(const LayerContext& ctx, const Fp8Linear& linear) const {
    return as_experts(*linear.weight, ctx.use(*linear.weight));
  }
  // (experts of this rank, N, K)
  static Tensor as_experts(const Parameter& parameter, Tensor weight) {
    const int64_t experts = parameter.weight[0], inputs = parameter.weight[parameter.weight.dims - 1];
    return weight.view({experts, weight.numel() / experts / inputs, inputs});
  }
  void expert_gradient(const LayerContext& ctx, const Parameter& parameter, Tensor dout, Tensor inp,
                       Tensor offsets) const {
    const auto target = ctx.hooks.gradient_target(parameter);
    grouped_weight_gradient({.dweight = as_experts(parameter, target.tensor),
                             .dout = dout,
                             .inp = inp,
                             .offsets = offsets,
                             .beta = target.beta},
                            ctx.compute);
    ctx.hooks.gradient_ready(parameter);
  }
  void fc2_gradient(const LayerContext& ctx, const MoeTensors& t) const {
    const MoeWorkspace& w = ctx.work.moe;
    if (!fp8_) return expert_gradient(ctx, *fc2_.weight, w.dout, t.activated, t.rank_offsets);
    fp8_expert_gradient(ctx, fc2_, ctx.fp8->transposed(w.fp8.dout, w.fp8.transpose, rows_.used(ctx, t)), t.activated_t,
                        t.rank_offsets);
  }
  void fp8_expert_gradient(const LayerContext& ctx, const Fp8Linear& linear, Tensor dout_t, Tensor inp_t,
                           Tensor offsets) const {
    const auto target = ctx.hooks.gradient_target(*linear.weight);
    ctx.fp8->experts_backward_weight(linear, as_experts(*linear.weight, target.tensor), dout_t, inp_t, offsets,
                                     target.beta);
    ctx.hooks.gradient_ready(*linear.weight);
  }
  void fp8_gradient(const LayerContext& ctx, const Fp8Linear& linear, Tensor dout_t, Tensor inp_t) const {
    const auto target = ctx.hooks.gradient_target(*linear.weight);
    ctx.fp8->backward_weight(linear, target.tensor, dout_t, inp_t, target.beta);
    ctx.hooks.gradient_ready(*linear.weight);
  }
  void gradient(const LayerContext& ctx, const Parameter& parameter, Tensor dout, Tensor inp) const {
    const auto target = ctx.hooks.gradient_target(parameter);
    gemm({.out = as_matrix(target.tensor, inp[1]), .a = dout, .b = inp, .trans_a = Trans::kYes, .beta = target.beta},
         ctx.compute);
    ctx.hooks.gradient_ready(parameter);
  }

  // The auxiliary loss of a microbatch of T tokens is weight · E / (K · T²) · sum of counts · shares, a mean over the
  // step's microbatches; the z loss is a mean over its tokens.
  float aux_scale(const LayerContext& ctx, const MoeRun& run) const {
    const double tokens = static_cast<double>(ctx.dims.R) * ctx.config.parallel.cp;
    return static_cast<float>(ctx.config.model.aux_loss * static_cast<double>(spec_.experts) /
                              (static_cast<double>(spec_.per_token) * tokens) * run.token_share);
  }
  float z_scale(const LayerContext& ctx, const MoeRun& run) const {
    return static_cast<float>(ctx.config.model.router_z_loss) * run.token_share;
  }

  // Chooses the experts, sorts the rows, and agrees with the other ranks on how many are sent.
  void route(const LayerContext& ctx, const MoeTensors& t) const {
    const MoeRun& run = *ctx.moe;
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor& bias = run.statistics.bias;
    router_forward({.experts = t.experts,
                    .weights = t.weights,
                    .counts = w.counts,
                    .share_sums = w.share_sums,
                    .logits = t.logits,
                    .bias = bias.empty() ? Tensor{} : bias.rows(rows_.number(), 1).flat(),
                    .rule = spec_.rule},
                   ctx.compute);
    if (!run.experts.empty()) ctx.compute.copy(t.experts.data, run.experts.data(), t.experts.bytes());
    // A repeated forward pass finds them saved; without a backward pass nothing reads them.
    if (!t.all_counts.empty() && run.counts) {
      ctx.compute.copy(t.all_counts.data, w.counts.data, w.counts.bytes());
      // The ranks along tp and cp have other rows of the microbatch.
      for (GroupOnStream* const group : {ctx.tp.size() > 1 ? &ctx.tp.collectives() : nullptr, ctx.cp}) {
        if (group == nullptr) continue;
        group->after(ctx.compute);
        group->all_reduce(t.all_counts, ReduceOp::kSum);
        group->before(ctx.compute);
      }
    }
    if (run.counts)
      router_totals({.load = run.statistics.load(rows_.number()),
                     .losses = run.statistics.losses(rows_.number()),
                     .counts = w.counts,
                     .all_counts = t.all_counts.empty() ? w.counts : t.all_counts,
                     .share_sums = w.share_sums,
                     .aux_scale = aux_scale(ctx, run),
                     .z_scale = z_scale(ctx, run)},
                    ctx.compute);
    sort_pairs({.place = t.place, .pair = t.pair, .offsets = t.offsets, .experts = t.experts}, ctx.compute);
    if (!rows_.is_divided(ctx)) return;
    if (!rows_.by_copies(ctx) && run.ep != nullptr) rows_.agree(ctx, t, *run.ep);
  }

  const MoeSpec spec_;
  const ExpertRowTransfers rows_;
  const bool fp8_;  // whether the GEMMs multiply FP8, except the router's
  const Parameter* router_;
  const Fp8Linear fc1_, fc2_;
  Fp8Linear shared_fc1_, shared_fc2_;
  ColumnLinear column_;  // without weights: rows need no gather
  RowLinear row_;
  mutable MoeTensors current_;  // of the backward pass in progress
};

}  // namespace

std::unique_ptr<BranchLayer> make_branch(const MoeSpec&, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters) {
  return std::make_unique<MoeLayer>(layer_spec, layer, parameters);
}

}  // namespace tri
