#include "lib/model/mlp.h"

#include "kernels/ops.h"
#include "lib/model/branch.h"

namespace tri {

LinearSpec MlpSpec::fc1() const {
  LinearSpec linear{.module = modules::kFc1,
                    .name = "fc1",
                    .split = LinearSplit::kColumn,
                    .outputs = {ffn_hidden},
                    .inputs = hidden,
                    .bias = bias};
  if (gated()) {  // gate first, then up
    linear.outputs = {2, ffn_hidden};
    linear.num_outputs = 2;
  }
  return linear;
}

LinearSpec MlpSpec::fc2() const {
  return {.module = modules::kFc2,
          .name = "fc2",
          .split = LinearSplit::kRow,
          .outputs = {hidden},
          .inputs = ffn_hidden,
          .bias = bias};
}

double MlpSpec::activation_elements(Pass pass) const {
  // Backward also reads the gradient of forward's output, and writes that of forward's input.
  return static_cast<double>((pass == Pass::kForward ? 1 : 2) * fc1_width() + ffn_hidden);
}

void allocate_tensors(const MlpSpec& mlp, const BranchMemory& m, LayerTensors& tensors) {
  const StageDims& d = m.dims;
  const Recompute recompute = m.config.parallel.recompute;
  const int64_t Fl = mlp.ffn_hidden / d.tp;
  MlpTensors& t = tensors.mlp;
  t.fc1 = m.take(d.dtype, {d.R, mlp.fc1_width() / d.tp});
  if (!m.fp8 && recompute != Recompute::kSelective) t.activated = m.take(d.dtype, {d.R, Fl});
  if (m.fp8 && keeps_activated(recompute)) t.activated_t = m.take(Dtype::kE4M3, {Fl, d.R});
}

void allocate_workspace(const MlpSpec& mlp, const BranchMemory& m, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const int64_t Fl = mlp.ffn_hidden / d.tp, fc1_width = mlp.fc1_width() / d.tp;
  MlpWorkspace& w = work.mlp;
  if (m.config.parallel.recompute == Recompute::kSelective) w.activated = m.take(d.dtype, {d.R, Fl});
  w.dfc1 = m.take(d.dtype, {d.R, fc1_width});
  w.dactivated = mlp.gated() ? m.take(d.dtype, {d.R, Fl}) : w.dfc1;
  if (!any_fp8_layer(m.config)) return;
  const Dtype gradient = m.config.precision.fp8_gradients;
  w.fp8_dfc1 = m.take(gradient, {d.R, fc1_width});
  w.fp8_dfc1_t = m.take(gradient, {fc1_width, d.R});
  w.fp8_activated = work.fp8.rows_of(d.R, Fl);
}

void allocate_due(const MlpSpec& mlp, const BranchMemory& m, LayerTensors& inputs, LayerWorkspace& work) {
  const StageDims& d = m.dims;
  const int64_t Fl = mlp.ffn_hidden / d.tp, fc1_width = mlp.fc1_width() / d.tp;
  if (!keeps_activated(m.config.parallel.recompute)) {
    if (m.fp8)
      inputs.mlp.activated_t = m.take(Dtype::kE4M3, {Fl, d.R});
    else
      inputs.mlp.activated = m.take(d.dtype, {d.R, Fl});
  }
  MlpWorkspace& w = work.mlp;
  if (m.fp8) {
    w.fp8_dfc1_t = m.take(m.config.precision.fp8_gradients, {fc1_width, d.R});
    return;
  }
  w.dfc1 = m.take(d.dtype, {d.R, fc1_width});
  if (!mlp.gated()) w.dactivated = w.dfc1;
}

MlpTensors with_workspace(MlpTensors t, const MlpWorkspace& work, bool fp8) {
  if (!fp8) {
    if (t.activated.empty()) t.activated = work.activated;
    return t;
  }
  t.activated = work.fp8_activated;
  if (t.activated_t.empty()) t.activated_t = t.activated.view({t.activated[1], t.activated[0]});
  return t;
}

MlpTensors first_rows(MlpTensors t, int64_t rows) {
  for (Tensor* tensor : {&t.fc1, &t.activated})
    if (!tensor->empty()) *tensor = tensor->rows(0, rows);
  return t;
}

namespace {

// fc1, activation, fc2. In bf16 and fp32 the tanh form of GeLU is the epilogue of fc1's GEMM and its gradient the
// epilogue of fc2's; FP8 GEMMs have no such epilogue.
class MlpLayer final : public BranchLayer {
 public:
  MlpLayer(const LayerSpec& spec, int layer, const std::vector<Parameter>& parameters)
      : spec_(spec.mlp), fp8_(spec.fp8), fused_(spec_.in_epilogue() && !fp8_) {
    fc1_ = ColumnLinear::bind(Branch::kMlp, spec_.fc1(), spec, parameters, layer);
    fc2_ = RowLinear::bind(Branch::kMlp, spec_.fc2(), spec, parameters, layer);
  }

  void column_forward(const LayerContext& ctx, const LayerTensors& t, Tensor normed) const override {
    if (fused_) return fc1_.forward_gelu(ctx, t.mlp.activated, t.mlp.fc1, normed);
    fc1_.forward(ctx, t.mlp.fc1, normed);
  }

  void recompute(const LayerContext& ctx, const LayerTensors& t) const override {
    if (!keeps_activated(ctx.config.parallel.recompute)) inner_forward(ctx, t, Inner::kRecomputed);
  }

  // FP8: a forward pass makes the rows that fc2 reads, and the transpose if it is saved. A backward pass makes only the
  // transpose.
  void inner_forward(const LayerContext& ctx, const LayerTensors& t, Inner inner) const override {
    if (fused_ && inner != Inner::kRecomputed) return;
    const MlpTensors& m = t.mlp;
    if (!fp8_) return activation_forward({.kind = spec_.activation, .out = m.activated, .inp = m.fc1}, ctx.compute);
    const bool again = inner != Inner::kForward, transposes = again || keeps_activated(ctx.config.parallel.recompute);
    ctx.fp8->activation_forward(spec_.activation, fc2_.linear, again ? Tensor{} : m.activated,
                                transposes ? m.activated_t : Tensor{}, m.fc1, ctx.work.mlp.dactivated);
  }

  void row_forward(const LayerContext& ctx, const LayerTensors& t, const PartialSums& sums) const override {
    fc2_.forward(ctx, sums.blocks, t.mlp.activated, sums.beta, sums.then);
  }

  void row_gradient(const LayerContext& ctx, const LayerTensors& t) const override {
    const LayerWorkspace& w = ctx.work;
    if (fused_) return fc2_.backward_input_gelu(ctx, w.mlp.dfc1, w.dbranch, t.mlp.fc1, fc1_);
    fc2_.backward_input(ctx, w.mlp.dactivated, fp8_ ? w.fp8.dstream : w.dbranch);
  }

  void inner_backward(const LayerContext& ctx, const LayerTensors& t) const override {
    if (fused_) return;
    const MlpWorkspace& w = ctx.work.mlp;
    if (!fp8_)
      return activation_backward({.kind = spec_.activation, .dinp = w.dfc1, .dout = w.dactivated, .inp = t.mlp.fc1},
                                 ctx.compute);
    ctx.fp8->activation_backward(spec_.activation, fc1_.linear, w.fp8_dfc1, w.fp8_dfc1_t, fc1_.bias_gradient(ctx),
                                 w.dactivated, t.mlp.fc1, w.dfc1);
    fc1_.bias_gradient_ready(ctx);
  }

  void column_gradient(const LayerContext& ctx, const PartialSums& sums) const override {
    const MlpWorkspace& w = ctx.work.mlp;
    fc1_.backward_input(ctx, sums.blocks, fp8_ ? w.fp8_dfc1 : w.dfc1, sums.beta, sums.then);
  }

  void row_weight(const LayerContext& ctx, const LayerTensors& t) const override {
    if (!fp8_) return fc2_.backward_weight(ctx, ctx.work.dbranch, t.mlp.activated);
    fc2_.backward_weight_fp8(ctx, transposed_stream_gradient(ctx, fc2_), t.mlp.activated_t);
  }

  void column_weight(const LayerContext& ctx, Tensor normed) const override {
    const MlpWorkspace& w = ctx.work.mlp;
    if (fp8_) return fc1_.backward_weight_fp8(ctx, w.fp8_dfc1_t, transposed_input(ctx, fc1_.linear, normed));
    if (fused_) return fc1_.backward_weight_alone(ctx, w.dfc1, normed);  // fc2's GEMM has computed the bias gradient
    fc1_.backward_weight(ctx, w.dfc1, normed);
  }

  const ColumnLinear& column_linear() const override { return fc1_; }
  const RowLinear& row_linear() const override { return fc2_; }

 private:
  const MlpSpec spec_;
  const bool fp8_;    // whether the GEMMs multiply FP8
  const bool fused_;  // whether the activation is part of the GEMMs
  ColumnLinear fc1_;
  RowLinear fc2_;
};

}  // namespace

std::unique_ptr<BranchLayer> make_branch(const MlpSpec&, const LayerSpec& layer_spec, int layer,
                                         const std::vector<Parameter>& parameters) {
  return std::make_unique<MlpLayer>(layer_spec, layer, parameters);
}

}  // namespace tri
