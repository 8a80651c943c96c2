#include "lib/model/moe.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/dims.h"
#include "kernels/ops.h"
#include "lib/comm/groups/group_on_stream.h"
#include "lib/model/branch.h"

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
  linear.orthogonal = false;
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
  return std::clamp(static_cast<int64_t>(std::ceil(capacity * static_cast<double>(balanced))), int64_t{1}, most);
}

void allocate_tensors(const MoeSpec& moe, const BranchMemory& m, LayerTensors& tensors) {
  const StageDims& d = m.dims;
  const int ep = m.config.parallel.ep;
  const bool saves_activated = m.config.parallel.recompute != Recompute::kSelective;
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
    t.arrived_place = m.take(Dtype::kI32, {P});
    t.arrived_pair = m.take(Dtype::kI32, {P});
    t.rank_offsets = m.take(Dtype::kI32, {moe.experts / ep + 1});
  }
  t.rows = m.take(d.dtype, {P, moe.hidden});
  t.fc1 = m.take(d.dtype, {P, moe.width_of(moe.expert_hidden)});
  if (saves_activated) t.activated = m.take(d.dtype, {P, moe.expert_hidden});
  t.returned = m.take(d.dtype, {pairs, moe.hidden});
  if (moe.shared_hidden > 0) {
    t.shared_fc1 = m.take(d.dtype, {d.Rl, moe.width_of(moe.shared_hidden)});
    if (saves_activated) t.shared_activated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
  }
  t.route = std::make_shared<MoeRoute>();
}

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
    w.arrived_counts = m.take(Dtype::kI32, {ep, moe.experts / ep});
    w.sent = m.take(d.dtype, {pairs, moe.hidden});
    w.arrived = m.take(d.dtype, {P, moe.hidden});
    w.out = m.take(d.dtype, {P, moe.hidden});
    w.dout = m.take(d.dtype, {P, moe.hidden});
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
  if (moe.shared_hidden == 0) return;
  w.shared_dfc1 = m.take(d.dtype, {d.Rl, moe.width_of(moe.shared_hidden)});
  w.shared_dactivated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
}

void allocate_due(const MoeSpec& moe, const BranchMemory& m, LayerTensors& inputs, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const Recompute recompute = m.config.parallel.recompute;
  const int64_t P = expert_rows(moe, d.Rl, m.config.parallel.ep, m.config.parallel.ep_capacity);
  if (recompute == Recompute::kFull) allocate_tensors(moe, m, inputs);
  if (recompute == Recompute::kSelective) {
    inputs.moe.activated = m.take(d.dtype, {P, moe.expert_hidden});
    if (moe.shared_hidden > 0) inputs.moe.shared_activated = m.take(d.dtype, {d.Rl, moe.shared_hidden});
  }
  MoeWorkspace& w = work.moe;
  w.dout = m.take(d.dtype, {P, moe.hidden});
  if (m.config.parallel.ep == 1) w.dreturned = w.dout;
  w.dfc1 = m.take(d.dtype, {P, moe.width_of(moe.expert_hidden)});
  w.dlogits = m.take(d.dtype, {d.Rl, moe.experts});
  if (moe.shared_hidden > 0) w.shared_dfc1 = m.take(d.dtype, {d.Rl, moe.width_of(moe.shared_hidden)});
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

MoeTensors with_workspace(MoeTensors t, const MoeWorkspace& work) {
  if (t.activated.empty()) t.activated = work.activated;
  if (t.shared_activated.empty()) t.shared_activated = work.shared_activated;
  return t;
}

namespace {

class MoeLayer final : public BranchLayer {
 public:
  MoeLayer(const LayerSpec& spec, int layer, const std::vector<Parameter>& parameters)
      : spec_(spec.moe),
        layer_(layer),
        router_(find_weight(parameters, modules::kRouter, layer)),
        fc1_(find_weight(parameters, modules::kExpertsFc1, layer)),
        fc2_(find_weight(parameters, modules::kExpertsFc2, layer)) {
    if (spec_.shared_hidden == 0) return;
    shared_fc1_ = find_weight(parameters, modules::kSharedFc1, layer);
    shared_fc2_ = find_weight(parameters, modules::kSharedFc2, layer);
  }

  // The router, the transfers of the rows to the experts, and fc1.
  void column_forward(const LayerContext& ctx, const LayerTensors& tensors, Tensor normed) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const Tensor rows = own_rows(ctx, normed);
    gemm({.out = t.logits, .a = rows, .b = as_matrix(ctx.use(*router_), spec_.hidden), .trans_b = Trans::kYes},
         ctx.compute);
    route(ctx, t);
    send_rows(ctx, t, rows);
    grouped_forward({.out = t.fc1, .inp = t.rows, .weight = expert_weight(ctx, *fc1_), .offsets = t.rank_offsets},
                    ctx.compute);
    if (spec_.shared_hidden > 0)
      gemm(
          {.out = t.shared_fc1, .a = rows, .b = as_matrix(ctx.use(*shared_fc1_), spec_.hidden), .trans_b = Trans::kYes},
          ctx.compute);
  }

  void recompute(const LayerContext& ctx, const LayerTensors& t) const override {
    if (!keeps_activated(ctx.config.parallel.recompute)) inner_forward(ctx, t, Inner::kRecomputed);
  }

  void inner_forward(const LayerContext& ctx, const LayerTensors& tensors, Inner) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    if (const int64_t rows = t.route->rows; rows > 0)
      activation_forward({.kind = spec_.activation, .out = t.activated.rows(0, rows), .inp = t.fc1.rows(0, rows)},
                         ctx.compute);
    if (spec_.shared_hidden > 0)
      activation_forward({.kind = spec_.activation, .out = t.shared_activated, .inp = t.shared_fc1}, ctx.compute);
  }

  // fc2, the way back, and the weighted sum, in the local rows of work.partial.
  void row_forward(const LayerContext& ctx, const LayerTensors& tensors, const PartialSums&) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor out = ctx.local_rows(ctx.work.partial);
    ctx.tp.wait_until_read(ctx.compute);
    grouped_forward({.out = is_divided(ctx) ? w.out : t.returned,
                     .inp = t.activated,
                     .weight = expert_weight(ctx, *fc2_),
                     .offsets = t.rank_offsets},
                    ctx.compute);
    return_rows(ctx, t, w.out, t.returned);
    if (spec_.shared_hidden > 0)
      gemm({.out = out,
            .a = t.shared_activated,
            .b = as_matrix(ctx.use(*shared_fc2_), spec_.shared_hidden),
            .trans_b = Trans::kYes},
           ctx.compute);
    combine_rows({.out = out,
                  .rows = t.returned,
                  .place = t.place,
                  .weights = t.weights,
                  .addend = spec_.shared_hidden > 0 ? out : Tensor{}},
                 ctx.compute);
  }

  void row_gradient(const LayerContext& ctx, const LayerTensors& tensors) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor dout = ctx.local_rows(ctx.work.dbranch), dreturned = pairs(ctx, w.dreturned);
    combine_backward({.drows = dreturned,
                      .dweights = own(ctx, w.dweights),
                      .dout = dout,
                      .rows = t.returned,
                      .place = t.place,
                      .weights = t.weights},
                     ctx.compute);
    if (is_divided(ctx)) {
      exchange(ctx, dreturned, w.arrived, *t.route, Way::kToExperts);
      sort_arrived(ctx, t, w.arrived, w.dout);
    }
    grouped_input_gradient(
        {.dinp = w.dactivated, .dout = w.dout, .weight = expert_weight(ctx, *fc2_), .offsets = t.rank_offsets},
        ctx.compute);
    if (spec_.shared_hidden > 0)
      gemm(
          {.out = own(ctx, w.shared_dactivated), .a = dout, .b = as_matrix(ctx.use(*shared_fc2_), spec_.shared_hidden)},
          ctx.compute);
  }

  void inner_backward(const LayerContext& ctx, const LayerTensors& tensors) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    const MoeWorkspace& w = ctx.work.moe;
    if (const int64_t rows = t.route->rows; rows > 0)
      activation_backward({.kind = spec_.activation,
                           .dinp = w.dfc1.rows(0, rows),
                           .dout = w.dactivated.rows(0, rows),
                           .inp = t.fc1.rows(0, rows)},
                          ctx.compute);
    if (spec_.shared_hidden > 0)
      activation_backward({.kind = spec_.activation,
                           .dinp = own(ctx, w.shared_dfc1),
                           .dout = own(ctx, w.shared_dactivated),
                           .inp = t.shared_fc1},
                          ctx.compute);
    const MoeRun& run = *ctx.moe;
    router_backward({.dlogits = own(ctx, w.dlogits),
                     .dweights = own(ctx, w.dweights),
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

  void column_gradient(const LayerContext& ctx, const PartialSums&) const override {
    const MoeTensors& t = current_;
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor out = ctx.local_rows(ctx.work.dnormed);
    ctx.tp.wait_until_read(ctx.compute);
    grouped_input_gradient(
        {.dinp = w.drows, .dout = w.dfc1, .weight = expert_weight(ctx, *fc1_), .offsets = t.rank_offsets}, ctx.compute);
    Tensor returned = w.drows;
    if (is_divided(ctx)) {
      returned = pairs(ctx, w.sent);
      return_rows(ctx, t, w.drows, returned);
    }
    gemm({.out = out, .a = own(ctx, w.dlogits), .b = as_matrix(ctx.use(*router_), spec_.hidden)}, ctx.compute);
    if (spec_.shared_hidden > 0)
      gemm(
          {.out = out, .a = own(ctx, w.shared_dfc1), .b = as_matrix(ctx.use(*shared_fc1_), spec_.hidden), .beta = 1.0f},
          ctx.compute);
    combine_rows({.out = out, .rows = returned, .place = t.place, .weights = {}, .addend = out}, ctx.compute);
  }

  void row_weight(const LayerContext& ctx, const LayerTensors& tensors) const override {
    const MoeTensors t = first_rows(ctx, tensors.moe);
    expert_gradient(ctx, *fc2_, ctx.work.moe.dout, t.activated, t.rank_offsets);
    if (spec_.shared_hidden > 0) gradient(ctx, *shared_fc2_, ctx.local_rows(ctx.work.dbranch), t.shared_activated);
  }

  void resume(const LayerContext& ctx, const LayerTensors& tensors) const override {
    current_ = first_rows(ctx, tensors.moe);
  }

  void column_weight(const LayerContext& ctx, Tensor normed) const override {
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor rows = own_rows(ctx, normed);
    expert_gradient(ctx, *fc1_, w.dfc1, current_.rows, current_.rank_offsets);
    if (spec_.shared_hidden > 0) gradient(ctx, *shared_fc1_, own(ctx, w.shared_dfc1), rows);
    gradient(ctx, *router_, own(ctx, w.dlogits), rows);
  }

  const ColumnLinear& column_linear() const override { return column_; }
  const RowLinear& row_linear() const override { return row_; }

 private:
  enum class Way { kToExperts, kBack };

  // Views of tensors of this rank's rows; a pass over cached sequences has fewer than were allocated.
  Tensor own(const LayerContext& ctx, Tensor tensor) const { return tensor.rows(0, ctx.dims.Rl); }
  Tensor pairs(const LayerContext& ctx, Tensor tensor) const { return tensor.rows(0, ctx.dims.Rl * spec_.per_token); }
  Tensor own_rows(const LayerContext& ctx, Tensor normed) const {
    return normed[0] == ctx.dims.Rl ? normed : ctx.local_rows(normed);
  }
  MoeTensors first_rows(const LayerContext& ctx, MoeTensors t) const {
    for (Tensor* tensor : {&t.logits, &t.experts, &t.weights, &t.place, &t.shared_fc1, &t.shared_activated})
      if (!tensor->empty()) *tensor = own(ctx, *tensor);
    for (Tensor* tensor : {&t.pair, &t.returned}) *tensor = pairs(ctx, *tensor);
    if (!is_divided(ctx))
      for (Tensor* tensor : {&t.rows, &t.fc1, &t.activated}) *tensor = pairs(ctx, *tensor);
    return t;
  }
  static bool is_divided(const LayerContext& ctx) { return ctx.config.parallel.ep > 1; }
  Tensor expert_weight(const LayerContext& ctx, const Parameter& parameter) const {
    return as_experts(parameter, ctx.use(parameter));
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
  int64_t number() const { return layer_ - spec_.first_layer; }  // among the layers with experts

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
                    .bias = bias.empty() ? Tensor{} : bias.rows(number(), 1).flat(),
                    .rule = spec_.rule},
                   ctx.compute);
    if (!t.all_counts.empty()) {
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
      router_totals({.load = run.statistics.load(number()),
                     .losses = run.statistics.losses(number()),
                     .counts = w.counts,
                     .all_counts = t.all_counts.empty() ? w.counts : t.all_counts,
                     .share_sums = w.share_sums,
                     .aux_scale = aux_scale(ctx, run),
                     .z_scale = z_scale(ctx, run)},
                    ctx.compute);
    sort_pairs({.place = t.place, .pair = t.pair, .offsets = t.offsets, .experts = t.experts}, ctx.compute);
    t.route->rows = ctx.dims.Rl * spec_.per_token;
    if (is_divided(ctx) && run.ep != nullptr) agree(ctx, t, *run.ep);
  }

  // The host waits for the numbers of rows once a layer.
  void agree(const LayerContext& ctx, const MoeTensors& t, GroupOnStream& ep) const {
    const MoeWorkspace& w = ctx.work.moe;
    MoeRoute& route = *t.route;
    const int64_t members = ep.size(), E = spec_.experts, El = E / members;
    route.offsets.resize(static_cast<size_t>(w.all_offsets.numel()));
    route.counts.resize(static_cast<size_t>(w.arrived_counts.numel()));
    route.sends.assign(static_cast<size_t>(members), 0);
    route.receives = route.sends;
    ep.after(ctx.compute);
    ep.all_gather(w.all_offsets.flat(), t.offsets);
    ep.before(ctx.compute);
    ctx.compute.copy(route.offsets.data(), w.all_offsets.data, w.all_offsets.bytes());
    ctx.compute.synchronize();
    const auto offset = [&](int64_t member, int64_t expert) {
      return int64_t{route.offsets[static_cast<size_t>(member * (E + 1) + expert)]};
    };
    route.rows = 0;
    for (int64_t m = 0; m < members; ++m) {
      const auto i = static_cast<size_t>(m);
      route.sends[i] = offset(ep.rank(), (m + 1) * El) - offset(ep.rank(), m * El);
      route.receives[i] = offset(m, (ep.rank() + 1) * El) - offset(m, ep.rank() * El);
      route.rows += route.receives[i];
      for (int64_t e = 0; e < El; ++e)
        route.counts[static_cast<size_t>(m * El + e)] =
            static_cast<int32_t>(offset(m, ep.rank() * El + e + 1) - offset(m, ep.rank() * El + e));
    }
    require_room(ctx, route, t.rows[0]);
    ctx.compute.copy(w.arrived_counts.data, route.counts.data(), w.arrived_counts.bytes());
    merge_sources(
        {.place = t.arrived_place, .pair = t.arrived_pair, .offsets = t.rank_offsets, .counts = w.arrived_counts},
        ctx.compute);
  }

  // Fails, alike on all members, if the experts of one of them have more rows than it has memory for.
  void require_room(const LayerContext& ctx, const MoeRoute& route, int64_t room) const {
    const int64_t E = spec_.experts, members = ctx.config.parallel.ep, El = E / members;
    const auto rows_of = [&](int64_t first, int64_t last) {
      int64_t rows = 0;
      for (int64_t m = 0; m < members; ++m) {
        const int32_t* offsets = route.offsets.data() + m * (E + 1);
        rows += offsets[last] - offsets[first];
      }
      return rows;
    };
    for (int64_t first = 0; first < E; first += El) {
      const int64_t rows = rows_of(first, first + El);
      if (rows <= room) continue;
      int64_t fullest = first;
      for (int64_t e = first; e < first + El; ++e)
        if (rows_of(e, e + 1) > rows_of(fullest, fullest + 1)) fullest = e;
      const auto balanced = static_cast<double>(ctx.dims.Rl * spec_.per_token);
      throw Fatal(
          ExitCode::kUsage,
          fmt::format(
              "layer {}: {} rows of a microbatch chose experts {} to {}, which are on one rank (expert {} alone "
              "{}), but parallel.ep_capacity {:g} has memory for {}; set parallel.ep_capacity to {:.1f} or more, "
              "raise model.aux_loss, or lower parallel.ep",
              layer_, rows, first, first + El - 1, fullest, rows_of(fullest, fullest + 1),
              ctx.config.parallel.ep_capacity, room, std::ceil(12 * static_cast<double>(rows) / balanced) / 10));
    }
  }

  // Sends rows, sorted by expert, to the experts' ranks, where they arrive rank by rank; or back.
  void exchange(const LayerContext& ctx, Tensor from, Tensor to, const MoeRoute& route, Way way) const {
    if (ctx.moe->ep == nullptr) return;
    GroupOnStream& ep = *ctx.moe->ep;
    const std::vector<int64_t>& out = way == Way::kToExperts ? route.sends : route.receives;
    const std::vector<int64_t>& in = way == Way::kToExperts ? route.receives : route.sends;
    std::vector<CommGroup::Message> sends, receives;
    Tensor kept, own_place;
    int64_t out_first = 0, in_first = 0;
    for (int peer = 0; peer < ep.size(); ++peer) {
      const int64_t out_rows = out[static_cast<size_t>(peer)], in_rows = in[static_cast<size_t>(peer)];
      const Tensor sent = from.rows(out_first, out_rows), received = to.rows(in_first, in_rows);
      out_first += out_rows;
      in_first += in_rows;
      if (peer == ep.rank()) {
        kept = sent;
        own_place = received;
        continue;
      }
      if (out_rows > 0) sends.push_back({sent, peer});
      if (in_rows > 0) receives.push_back({received, peer});
    }
    ep.after(ctx.compute);
    ep.exchange(sends, receives);
    ep.before(ctx.compute);
    if (kept[0] > 0) ctx.compute.copy(own_place.data, kept.data, kept.bytes());
  }

  // Sorts the rows that have arrived by expert.
  void sort_arrived(const LayerContext& ctx, const MoeTensors& t, Tensor arrived, Tensor sorted) const {
    const int64_t rows = t.route->rows;
    if (rows == 0) return;
    gather_rows({.out = sorted.rows(0, rows), .inp = arrived, .index = t.arrived_pair.rows(0, rows)}, ctx.compute);
  }

  // Fills t.rows with the rows that the rank's experts read.
  void send_rows(const LayerContext& ctx, const MoeTensors& t, Tensor rows) const {
    const MoeWorkspace& w = ctx.work.moe;
    const Tensor sorted = pairs(ctx, is_divided(ctx) ? w.sent : t.rows);
    gather_rows({.out = sorted, .inp = rows, .index = t.pair, .divisor = static_cast<int>(spec_.per_token)},
                ctx.compute);
    if (!is_divided(ctx)) return;
    exchange(ctx, sorted, w.arrived, *t.route, Way::kToExperts);
    sort_arrived(ctx, t, w.arrived, t.rows);
  }

  // Returns the experts' rows `out`, sorted by expert, to where they came from. Nothing to do with ep 1.
  void return_rows(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned) const {
    if (!is_divided(ctx)) return;
    const MoeWorkspace& w = ctx.work.moe;
    if (const int64_t rows = t.route->rows; rows > 0)
      gather_rows({.out = w.arrived.rows(0, rows), .inp = out, .index = t.arrived_place.rows(0, rows)}, ctx.compute);
    exchange(ctx, w.arrived, returned, *t.route, Way::kBack);
  }

  const MoeSpec spec_;
  const int layer_;
  const Parameter *router_, *fc1_, *fc2_;
  const Parameter *shared_fc1_ = nullptr, *shared_fc2_ = nullptr;
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
