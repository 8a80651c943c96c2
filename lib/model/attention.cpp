#include "lib/model/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/qkv_row.h"
#include "kernels/ops.h"
#include "lib/model/branch.h"
#include "lib/model/kv_exchange.h"
#include "lib/model/layer_spec.h"

namespace tri {

LinearSpec AttentionSpec::qkv() const {
  return {.module = modules::kQkv,
          .name = "qkv",
          .split = LinearSplit::kColumn,
          .outputs = {qkv_width()},
          .inputs = hidden,
          .bias = bias,
          .interleaved = {int64_t{heads} / kv_heads * head_dim, head_dim, head_dim}};
}

LinearSpec AttentionSpec::proj() const {
  return {.module = modules::kProj,
          .name = "proj",
          .split = LinearSplit::kRow,
          .outputs = {hidden},
          .inputs = width(),
          .bias = output_bias};
}

std::vector<ModuleSpec> AttentionSpec::modules() const {
  if (qk_norm == QkNorm::kNone) return {qkv(), proj()};
  const bool full = qk_norm == QkNorm::kFull;
  const auto norm = [&](std::string_view module, int64_t width) {
    return NormSpec{.module = module,
                    .width = full ? width : head_dim,
                    .place = NormPlace::kInside,
                    .branch = Branch::kAttention,
                    .sharded = full};
  };
  return {qkv(), norm(modules::kQueryNorm, width()), norm(modules::kKeyNorm, kv_width()), proj()};
}

namespace {

RopeAngles rope_angles(const ModelConfig& m) {
  return {.theta = m.rope_theta,
          .fraction = m.rope_fraction,
          .scaling = m.rope_scaling,
          .factor = m.rope_factor,
          .original_seq_len = m.rope_original_seq_len,
          .low_freq_factor = m.rope_low_freq_factor,
          .high_freq_factor = m.rope_high_freq_factor,
          .beta_fast = m.rope_beta_fast,
          .beta_slow = m.rope_beta_slow,
          .attention_factor = m.rope_attention_factor};
}

RopeAngles local_rope_angles(const ModelConfig& m) {
  return {.theta = m.rope_theta_local, .fraction = m.rope_fraction};
}

}  // namespace

double AttentionSpec::keys_per_query(AttentionWork work) const {
  const double keys = window > 0 ? std::min(window, seq_len) : seq_len;
  if (work == AttentionWork::kBand) return keys;
  return keys - keys * (keys - 1) / (2.0 * seq_len);  // the first W - 1 queries have fewer than W keys
}

double AttentionSpec::core_flops_per_token(AttentionWork work) const { return flops_per_pair() * keys_per_query(work); }

double AttentionSpec::rope_elements(Pass pass, bool in_place) const {
  const auto all = static_cast<double>(qkv_width()), values = static_cast<double>(kv_width());
  if (qk_norm != QkNorm::kNone) {
    // Backward also reads forward's input. Over the full width, each pass first reads queries and keys for their sums.
    const double heads = pass == Pass::kForward ? 2 * all : 3 * all - values;
    return qk_norm == QkNorm::kHead ? heads : heads + (pass == Pass::kForward ? 1 : 2) * (all - values);
  }
  if (!rope) return 0;
  return 2 * (in_place ? all - values : all);
}

double AttentionSpec::column_elements(Pass pass, int tp) const {
  return rope_elements(pass, attention_order(*this, tp) == QkvOrder::kGrouped);
}

int64_t AttentionSpec::widest_output(int tp) const { return share_of(*this, tp).qkv_width; }

QkvOrder attention_order(const AttentionSpec& a, int tp) {
  const bool changes = a.rope && !has_one_query_stride(QkvOrder::kGrouped, a.kv_heads / tp, a.heads / a.kv_heads);
  return changes ? QkvOrder::kByKind : QkvOrder::kGrouped;
}

int kv_head_groups(const AttentionSpec& a, int tp, int cp, int ranks_per_node, bool overlap) {
  constexpr int kMost = 4;
  const bool in_machines = tp * cp <= ranks_per_node && ranks_per_node % (tp * cp) == 0;
  if (cp == 1 || in_machines || !overlap) return 1;
  const int heads = share_of(a, tp).NKVl;
  int groups = std::min(kMost, heads);
  while (heads % groups != 0) --groups;
  return groups;
}

AttentionShare share_of(const AttentionSpec& a, int tp) {
  const int heads = a.heads / tp, kv_heads = std::max(1, a.kv_heads / tp);
  return {.NHl = heads,
          .NKVl = kv_heads,
          .G = heads / kv_heads,
          .HS = a.head_dim,
          .qkv_width = (heads + int64_t{2} * kv_heads) * a.head_dim,
          .width = int64_t{heads} * a.head_dim,
          .order = attention_order(a, tp)};
}

AttentionShape kernel_shape(const AttentionSpec& attention, int tp, int cp, Dtype dtype, int micro_batch) {
  const AttentionShare a = share_of(attention, tp);
  return {.dtype = dtype,
          .seq_len = attention.seq_len / cp,
          .num_kv_heads = a.NKVl,
          .group = a.G,
          .head_size = a.HS,
          .window = attention.window,
          .order = a.order,
          .batch = micro_batch,
          .softcap = attention.softcap > 0,
          .documents = attention.documents,
          .key_len = cp > 1 ? attention.seq_len : 0};
}

void allocate_tensors(const AttentionSpec& attention, const BranchMemory& m, LayerTensors& tensors) {
  const StageDims& d = m.dims;
  const AttentionShare a = share_of(attention, d.tp);
  AttentionTensors& t = tensors.attention;
  if (attention.qk_norm != QkNorm::kNone) t.projected = m.take(d.dtype, {d.R, a.qkv_width});
  t.qkv = m.take(d.dtype, {d.R, a.qkv_width});
  t.out = m.take(d.dtype, {d.R, a.width});
  t.lse = m.take(Dtype::kF32, {d.B, a.NHl, d.T});
  if (attention.qk_norm == QkNorm::kFull) t.qk_rstd = m.take(Dtype::kF32, {d.R, 2});
}

void allocate_workspace(const AttentionSpec& attention, const BranchMemory& m, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const AttentionShare a = share_of(attention, d.tp);
  AttentionWorkspace& w = work.attention;
  w.dout = m.take(d.dtype, {d.R, a.width});
  w.dqkv = m.take(d.dtype, {d.R, a.qkv_width});
  if (a.order != QkvOrder::kGrouped) w.rope_input = m.take(d.dtype, {d.R, a.qkv_width});
  w.delta = m.take(Dtype::kF32, {d.B, a.NHl, d.T});
  const int64_t positions = resets_positions(m.config) ? d.chunks.seq_len : d.T;
  if (attention.rope) w.rope.global = m.take(Dtype::kF32, {positions, a.HS / 2, 2});
  if (m.config.model.rope_theta_local > 0) w.rope.local = m.take(Dtype::kF32, {positions, a.HS / 2, 2});
  if (resets_positions(m.config)) {
    w.positions = m.take(Dtype::kI32, {d.R});
    for (const auto& [rows, table] :
         {std::pair{&w.document_rope.global, w.rope.global}, std::pair{&w.document_rope.local, w.rope.local}})
      if (!table.empty()) *rows = m.take(Dtype::kF32, {d.R, a.HS / 2, 2});
  }
  if (attention.qk_norm == QkNorm::kFull) w.qk_sums = m.take(Dtype::kF32, {d.R, 2});
  if (d.chunks.cp.size > 1) {
    const int groups = kv_head_groups(attention, d.tp, d.chunks.cp.size, m.config.cluster.ranks_per_node,
                                      m.config.parallel.overlap_cp);
    for (Tensor* whole : {&w.kv, &w.dkv})
      *whole = m.take(d.dtype, {groups, d.B * d.chunks.seq_len, int64_t{2} * (a.NKVl / groups) * a.HS});
  }
  if (!any_fp8_layer(m.config)) return;
  const Dtype gradient = m.config.precision.fp8_gradients;
  w.fp8_out = m.take(Dtype::kE4M3, {d.R, a.width});
  w.fp8_dqkv = m.take(gradient, {d.R, a.qkv_width});
  w.fp8_dqkv_t = m.take(gradient, {a.qkv_width, d.R});
}

void allocate_due(const AttentionSpec& attention, const BranchMemory& m, LayerTensors& inputs, LayerWorkspace& work) {
  const AttentionShare a = share_of(attention, m.dims.tp);
  if (m.config.parallel.recompute == Recompute::kFull) inputs.attention.out = m.take(m.dims.dtype, {m.dims.R, a.width});
  if (m.fp8)
    work.attention.fp8_dqkv_t = m.take(m.config.precision.fp8_gradients, {a.qkv_width, m.dims.R});
  else
    work.attention.dqkv = m.take(m.dims.dtype, {m.dims.R, a.qkv_width});
}

AttentionTensors first_rows(AttentionTensors t, int64_t rows) {
  for (Tensor* tensor : {&t.projected, &t.qk_rstd, &t.qkv, &t.out})
    if (!tensor->empty()) *tensor = tensor->rows(0, rows);
  return t;
}

void fill_angles(const AttentionWorkspace& work, const ModelConfig& model, const SequenceChunks& chunks,
                 Stream& compute) {
  const auto fill = [&](Tensor table, const RopeAngles& angles) {
    if (table.empty()) return;
    const int64_t width = 2 * table[1];  // of a position
    std::vector<float> h_table(static_cast<size_t>(chunks.seq_len * width));
    fill_rope_table(h_table.data(), static_cast<int>(chunks.seq_len), static_cast<int>(width), angles);
    const bool whole = !work.document_rope.global.empty();
    for (const SequencePiece& piece : (whole ? SequenceChunks{.seq_len = chunks.seq_len, .cp = {}} : chunks).pieces()) {
      const Tensor rows = table.rows(piece.local, piece.count);
      compute.copy(rows.data, h_table.data() + piece.global * width, rows.bytes());
    }
    compute.synchronize();
  };
  fill(work.rope.global, rope_angles(model));
  fill(work.rope.local, local_rope_angles(model));
}

void look_up_angles(const RopeTables& rows, const RopeTables& tables, Tensor positions, Stream& compute) {
  const auto look_up = [&](Tensor angles, Tensor table) {
    if (angles.empty()) return;
    embedding_forward({.out = angles.view({angles[0], 2 * angles[1]}),
                       .tokens = positions,
                       .weight = table.view({table[0], 2 * table[1]})},
                      compute);
  };
  look_up(rows.global, tables.global);
  look_up(rows.local, tables.local);
}

namespace {

// qkv, then QK-norm and RoPE if the model has them, then attention and proj.
class AttentionLayer final : public BranchLayer {
 public:
  AttentionLayer(const LayerSpec& spec, int layer, const std::vector<Parameter>& parameters)
      : spec_(spec.attention), fp8_(spec.fp8) {
    qkv_ = ColumnLinear::bind(Branch::kAttention, spec_.qkv(), spec, parameters, layer);
    if (spec_.qk_norm != QkNorm::kNone) {
      query_norm_ = find_weight(parameters, modules::kQueryNorm, layer);
      key_norm_ = find_weight(parameters, modules::kKeyNorm, layer);
    }
    proj_ = RowLinear::bind(Branch::kAttention, spec_.proj(), spec, parameters, layer);
  }

  void column_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const override {
    qkv_.forward(ctx, projected(ctx, t.attention), normed);
  }

  void inner_forward(const LayerContext& ctx, const LayerTensors& t, Inner) const override {
    const AttentionTensors& a = t.attention;
    rotate_forward(ctx, a.qkv, projected(ctx, a), a);
    const AttentionForward attention = with_shape(ctx, AttentionForward{.out = a.out, .lse = a.lse, .qkv = a.qkv});
    if (divides_samples(ctx)) {
      const KvExchange exchange(ctx, spec_);
      exchange.start_gather(a.qkv);
      for (int group = 0; group < exchange.groups(); ++group) {
        exchange.finish_gather(group);
        attention_forward(exchange.of_group(group, attention), ctx.compute);
      }
    } else if (a.cache.keys.empty()) {
      attention_forward(attention, ctx.compute);
    } else {
      cached_forward(ctx, a);
    }
    if (fp8_) ctx.fp8->cast(Fp8Operand::kInput, proj_.linear, a.out, ctx.work.attention.fp8_out);
  }

  void row_forward(const LayerContext& ctx, const LayerTensors& t, const PartialSums& sums) const override {
    proj_.forward(ctx, sums.blocks, fp8_ ? ctx.work.attention.fp8_out : t.attention.out, sums.beta, sums.then);
  }

  void row_gradient(const LayerContext& ctx, const LayerTensors& t) const override {
    if (gathers_again(ctx)) KvExchange(ctx, spec_).start_gather(t.attention.qkv);
    proj_.backward_input(ctx, ctx.work.attention.dout, fp8_ ? ctx.work.fp8.dstream : ctx.work.dbranch);
  }

  void inner_backward(const LayerContext& ctx, const LayerTensors& t) const override {
    const AttentionTensors& a = t.attention;
    const AttentionWorkspace& w = ctx.work.attention;
    const Tensor dqkv = rope_input(ctx, w.dqkv);
    const AttentionBackward attention =
        with_shape(ctx, AttentionBackward{.dqkv = dqkv,
                                          .delta = w.delta,
                                          .dout = w.dout,
                                          .out = a.out,
                                          .lse = a.lse,
                                          .qkv = a.qkv,
                                          .deterministic = ctx.config.run.deterministic});
    if (divides_samples(ctx)) {
      const KvExchange exchange(ctx, spec_);
      const bool gathers = gathers_again(ctx);
      if (gathers) exchange.finish_gather(0);
      for (int group = 0; group < exchange.groups(); ++group) {
        attention_backward(exchange.of_group(group, attention), ctx.compute);
        // Before the reduce is enqueued, which the next group's attention must not wait for.
        if (gathers && group + 1 < exchange.groups()) exchange.finish_gather(group + 1);
        exchange.start_reduce(group);
      }
      exchange.finish_reduce(dqkv);
    } else {
      attention_backward(attention, ctx.compute);
    }
    rotate_backward(ctx, w.dqkv, dqkv, a);
    if (!fp8_) return;
    ctx.fp8->cast(Fp8Operand::kGradient, qkv_.linear, w.dqkv, w.fp8_dqkv, w.fp8_dqkv_t, qkv_.bias_gradient(ctx));
    qkv_.bias_gradient_ready(ctx);
  }

  void column_gradient(const LayerContext& ctx, const PartialSums& sums) const override {
    const AttentionWorkspace& w = ctx.work.attention;
    qkv_.backward_input(ctx, sums.blocks, fp8_ ? w.fp8_dqkv : w.dqkv, sums.beta, sums.then);
  }

  void row_weight(const LayerContext& ctx, const LayerTensors& t) const override {
    if (!fp8_) return proj_.backward_weight(ctx, ctx.work.dbranch, t.attention.out);
    const Tensor dout_t = transposed_stream_gradient(ctx, proj_);
    proj_.backward_weight_fp8(ctx, dout_t, transposed_input(ctx, proj_.linear, t.attention.out));
  }

  void column_weight(const LayerContext& ctx, Tensor normed) const override {
    const AttentionWorkspace& w = ctx.work.attention;
    if (!fp8_) return qkv_.backward_weight(ctx, w.dqkv, normed);
    qkv_.backward_weight_fp8(ctx, w.fp8_dqkv_t, transposed_input(ctx, qkv_.linear, normed));
  }

  const ColumnLinear& column_linear() const override { return qkv_; }
  const RowLinear& row_linear() const override { return proj_; }

 private:
  // Whether the backward pass gathers keys and values: saved activations hold the local ones only, but a layer that was
  // just recomputed has gathered them.
  static bool gathers_again(const LayerContext& ctx) {
    return divides_samples(ctx) && ctx.config.parallel.recompute != Recompute::kFull;
  }
  void cached_forward(const LayerContext& ctx, const AttentionTensors& a) const {
    const AttentionShare share = share_of(spec_, ctx.dims.tp);
    cached_attention({.out = a.out,
                      .keys = a.cache.keys,
                      .values = a.cache.values,
                      .qkv = a.qkv,
                      .sequences = ctx.work.attention.sequences,
                      .positions = ctx.work.attention.positions,
                      .order = share.order,
                      .num_kv_heads = share.NKVl,
                      .group = share.G,
                      .window = spec_.window,
                      .scale = scale(),
                      .softcap = static_cast<float>(spec_.softcap)},
                     ctx.compute);
  }
  // Returns the table of rotary angles: a row for each position of a sample, or for each row of the microbatch.
  Tensor angles(const LayerContext& ctx) const {
    const AttentionWorkspace& w = ctx.work.attention;
    return (ctx.document_starts.empty() || w.positions.empty() ? w.rope : w.document_rope).of(spec_);
  }
  float scale() const {
    return spec_.scale > 0 ? static_cast<float>(spec_.scale) : 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  }

  // Returns `args` of either pass with the shape and the kernel that both passes share, without those of KvExchange.
  template <class Args>
  Args with_shape(const LayerContext& ctx, Args args) const {
    const AttentionShare share = share_of(spec_, ctx.dims.tp);
    args.first_key = ctx.document_starts;
    args.order = share.order;
    args.seq_len = ctx.dims.T;
    args.num_kv_heads = share.NKVl;
    args.group = share.G;
    args.window = spec_.window;
    args.scale = scale();
    args.softcap = static_cast<float>(spec_.softcap);
    args.kernel = ctx.config.model.attention;
    return args;
  }

  // Applies QK-norm and RoPE to qkv's output `inp`. Attention reads `out`, which is `inp` if the model has neither.
  void rotate_forward(const LayerContext& ctx, Tensor out, Tensor inp, const AttentionTensors& t) const {
    const AttentionShare share = share_of(spec_, ctx.dims.tp);
    if (spec_.qk_norm == QkNorm::kFull) {
      full_norm_forward(ctx, out, inp, t, share);
    } else if (spec_.qk_norm == QkNorm::kHead) {
      qk_norm_rope_forward({.eps = static_cast<float>(spec_.norm_eps),
                            .offset = static_cast<float>(spec_.norm_offset),
                            .out = out,
                            .inp = inp,
                            .query_weight = ctx.use(*query_norm_),
                            .key_weight = ctx.use(*key_norm_),
                            .table = angles(ctx),
                            .num_kv_heads = share.NKVl,
                            .group = share.G,
                            .out_order = share.order},
                           ctx.compute);
    } else if (spec_.rope) {
      rope({.pass = Pass::kForward,
            .out = out,
            .inp = inp,
            .table = angles(ctx),
            .num_kv_heads = share.NKVl,
            .group = share.G,
            .out_order = share.order,
            .inp_order = QkvOrder::kGrouped},
           ctx.compute);
    }
  }
  // Computes the gradient of qkv's output from the gradient `dout` of the rotated rows.
  void rotate_backward(const LayerContext& ctx, Tensor dinp, Tensor dout, const AttentionTensors& t) const {
    const AttentionShare share = share_of(spec_, ctx.dims.tp);
    if (spec_.qk_norm == QkNorm::kFull) {
      full_norm_backward(ctx, dinp, dout, t, share);
    } else if (spec_.qk_norm == QkNorm::kHead) {
      qk_norm_rope_backward({.eps = static_cast<float>(spec_.norm_eps),
                             .offset = static_cast<float>(spec_.norm_offset),
                             .dinp = dinp,
                             .dquery_weight = ctx.hooks.gradient(*query_norm_),
                             .dkey_weight = ctx.hooks.gradient(*key_norm_),
                             .dout = dout,
                             .inp = t.projected,
                             .query_weight = ctx.use(*query_norm_),
                             .key_weight = ctx.use(*key_norm_),
                             .table = angles(ctx),
                             .num_kv_heads = share.NKVl,
                             .group = share.G,
                             .dout_order = share.order},
                            ctx.compute);
      ctx.hooks.gradient_ready(*key_norm_);
      ctx.hooks.gradient_ready(*query_norm_);
    } else if (spec_.rope) {
      rope({.pass = Pass::kBackward,
            .out = dinp,
            .inp = dout,
            .table = angles(ctx),
            .num_kv_heads = share.NKVl,
            .group = share.G,
            .out_order = QkvOrder::kGrouped,
            .inp_order = share.order},
           ctx.compute);
    }
  }
  void full_norm_forward(const LayerContext& ctx, Tensor out, Tensor inp, const AttentionTensors& t,
                         const AttentionShare& share) const {
    const Tensor squares = ctx.work.attention.qk_sums;
    qk_norm_squares({.sums = squares, .inp = inp, .num_kv_heads = share.NKVl, .group = share.G}, ctx.compute);
    sum_over_tp(ctx, squares);
    qk_norm_full_forward({.eps = static_cast<float>(spec_.norm_eps),
                          .query_width = spec_.width(),
                          .key_width = spec_.kv_width(),
                          .out = out,
                          .rstd = t.qk_rstd,
                          .squares = squares,
                          .inp = inp,
                          .query_weight = ctx.use(*query_norm_),
                          .key_weight = ctx.use(*key_norm_),
                          .table = angles(ctx),
                          .num_kv_heads = share.NKVl,
                          .group = share.G,
                          .out_order = share.order},
                         ctx.compute);
  }
  void full_norm_backward(const LayerContext& ctx, Tensor dinp, Tensor dout, const AttentionTensors& t,
                          const AttentionShare& share) const {
    const Tensor products = ctx.work.attention.qk_sums, table = angles(ctx);
    const Tensor query_weight = ctx.use(*query_norm_), key_weight = ctx.use(*key_norm_);
    qk_norm_products({.sums = products,
                      .dout = dout,
                      .inp = t.projected,
                      .query_weight = query_weight,
                      .key_weight = key_weight,
                      .table = table,
                      .num_kv_heads = share.NKVl,
                      .group = share.G,
                      .dout_order = share.order},
                     ctx.compute);
    sum_over_tp(ctx, products);
    qk_norm_full_backward({.query_width = spec_.width(),
                           .key_width = spec_.kv_width(),
                           .dinp = dinp,
                           .dquery_weight = ctx.hooks.gradient(*query_norm_),
                           .dkey_weight = ctx.hooks.gradient(*key_norm_),
                           .rstd = t.qk_rstd,
                           .products = products,
                           .dout = dout,
                           .inp = t.projected,
                           .query_weight = query_weight,
                           .key_weight = key_weight,
                           .table = table,
                           .num_kv_heads = share.NKVl,
                           .group = share.G,
                           .dout_order = share.order},
                          ctx.compute);
    ctx.hooks.gradient_ready(*key_norm_);
    ctx.hooks.gradient_ready(*query_norm_);
  }
  static void sum_over_tp(const LayerContext& ctx, Tensor sums) {
    if (ctx.tp.size() == 1) return;
    GroupOnStream& group = ctx.tp.collectives();
    group.after(ctx.compute);
    group.all_reduce(sums.flat(), ReduceOp::kSum);
    group.before(ctx.compute);
  }
  // Returns where qkv's output goes: QK-norm's saved input; the workspace if RoPE changes the order of heads; else in
  // place.
  Tensor projected(const LayerContext& ctx, const AttentionTensors& t) const {
    return spec_.qk_norm != QkNorm::kNone ? t.projected : rope_input(ctx, t.qkv);
  }
  // Returns memory for rows before RoPE: `rows` itself, unless RoPE changes the order of heads.
  Tensor rope_input(const LayerContext& ctx, Tensor rows) const {
    return attention_order(spec_, ctx.dims.tp) == QkvOrder::kGrouped ? rows : ctx.work.attention.rope_input;
  }

  const AttentionSpec spec_;
  const bool fp8_;  // whether the GEMMs multiply FP8
  ColumnLinear qkv_;
  const Parameter *query_norm_ = nullptr, *key_norm_ = nullptr;  // with QK-norm
  RowLinear proj_;
};

}  // namespace

std::unique_ptr<BranchLayer> make_branch(const AttentionSpec&, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters) {
  return std::make_unique<AttentionLayer>(layer_spec, layer, parameters);
}

}  // namespace tri
