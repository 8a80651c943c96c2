#include "lib/model/layers.h"

#include "kernels/ops.h"

namespace tri {
namespace {

// Adds to dweight and, if all rows of `dout` count for it, to dbias, in one operation.
void add_gradients(const LayerContext& ctx, const Parameter& weight, const Parameter* bias, Tensor dout, Tensor inp) {
  const auto target = ctx.hooks.gradient_target(weight);
  gemm({.out = as_matrix(target.tensor, inp[1]),
        .a = dout,
        .b = inp,
        .trans_a = Trans::kYes,
        .beta = target.beta,
        .dbias = bias == nullptr ? Tensor{} : ctx.hooks.gradient(*bias).flat()},
       ctx.compute);
  if (bias != nullptr) ctx.hooks.gradient_ready(*bias);
  ctx.hooks.gradient_ready(weight);
}

void add_fp8_gradient(const LayerContext& ctx, const Fp8Linear& l, Tensor dout_t, Tensor inp_t) {
  const auto target = ctx.hooks.gradient_target(*l.weight);
  ctx.fp8->backward_weight(l, target.tensor, dout_t, inp_t, target.beta);
  ctx.hooks.gradient_ready(*l.weight);
}

Tensor gradient_of(const LayerContext& ctx, const Parameter* bias) {
  return bias == nullptr ? Tensor{} : ctx.hooks.gradient(*bias).flat();
}

}  // namespace

void LayerContext::need(Tensor rows) const {
  if (!tp.gathering(rows)) return;
  tp.finish_gather(rows, compute);
  tp.wait_until_read(compute);
}

NormLayer NormLayer::bind(const std::vector<Parameter>& parameters, std::string_view module, int layer) {
  return {find_weight(parameters, module, layer), find_bias(parameters, module, layer)};
}

// The arguments of a norm of the stream's sum, without an output.
static NormForward norm_of_stream(const NormLayer& layer, const LayerContext& ctx, ResidualStream stream, Tensor sum,
                                  const NormTensors& t) {
  return {.kind = ctx.config.model.norm,
          .eps = static_cast<float>(ctx.config.model.norm_eps),
          .offset = static_cast<float>(ctx.config.model.norm_offset),
          .mean = t.mean,
          .rstd = t.rstd,
          .sum = stream.add.empty() ? Tensor{} : sum,
          .inp = stream.inp,
          .add = stream.add,
          .add_bias = stream.add_bias,
          .weight = ctx.use(*layer.weight),
          .bias = layer.bias == nullptr ? Tensor{} : ctx.use(*layer.bias)};
}

void NormLayer::forward(const LayerContext& ctx, ResidualStream stream, Tensor sum, const NormTensors& t,
                        Tensor rows) const {
  ctx.begin_gather(rows);
  const Tensor local = ctx.local_rows(rows);
  NormForward norm = norm_of_stream(*this, ctx, stream, sum, t);
  if (is_fp8(rows.dtype)) {
    ctx.fp8->norm_forward(reader, norm, local, ctx.local_rows(ctx.work.normed));
  } else {
    norm.out = local;
    norm_forward(norm, ctx.compute);
  }
  ctx.start_gather(rows);
}

void NormLayer::forward_local(const LayerContext& ctx, ResidualStream stream, Tensor sum, const NormTensors& t,
                              Tensor local) const {
  NormForward norm = norm_of_stream(*this, ctx, stream, sum, t);
  norm.out = local;
  norm_forward(norm, ctx.compute);
}

void NormLayer::forward(const LayerContext& ctx, Tensor out, Tensor inp, const NormTensors& t) const {
  norm_forward({.kind = ctx.config.model.norm,
                .eps = static_cast<float>(ctx.config.model.norm_eps),
                .offset = static_cast<float>(ctx.config.model.norm_offset),
                .out = out,
                .mean = t.mean,
                .rstd = t.rstd,
                .inp = inp,
                .weight = ctx.use(*weight),
                .bias = bias == nullptr ? Tensor{} : ctx.use(*bias)},
               ctx.compute);
}

void NormLayer::backward(const LayerContext& ctx, Tensor dinp, Tensor dresidual, Tensor dout, Tensor inp,
                         const NormTensors& t) const {
  norm_backward({.kind = ctx.config.model.norm,
                 .offset = static_cast<float>(ctx.config.model.norm_offset),
                 .dinp = dinp,
                 .dresidual = dresidual,
                 .dweight = ctx.hooks.gradient(*weight),
                 .dbias = bias == nullptr ? Tensor{} : ctx.hooks.gradient(*bias),
                 .dout = dout,
                 .inp = inp,
                 .weight = ctx.use(*weight),
                 .mean = t.mean,
                 .rstd = t.rstd},
                ctx.compute);
  if (bias != nullptr) ctx.hooks.gradient_ready(*bias);
  ctx.hooks.gradient_ready(*weight);
}

ColumnLinear ColumnLinear::bind(Branch branch, const LinearSpec& spec, const LayerSpec& layer_spec,
                                const std::vector<Parameter>& parameters, int layer) {
  return {layer_spec.id(layer, branch, spec), find_weight(parameters, spec.module, layer),
          find_bias(parameters, spec.module, layer)};
}

void ColumnLinear::forward(const LayerContext& ctx, Tensor out, Tensor inp) const {
  const Tensor matrix = as_matrix(ctx.use(*weight), inp[1]);
  const Tensor row = bias == nullptr ? Tensor{} : ctx.use(*bias).flat();
  ctx.for_arriving(inp, ctx.splits.of(linear.place, Pass::kForward), [&](int64_t first, int64_t count) {
    if (is_fp8(inp.dtype)) return ctx.fp8->forward(fp8(), out.rows(first, count), inp.rows(first, count), 0.0f, row);
    gemm({.out = out.rows(first, count), .a = inp.rows(first, count), .b = matrix, .trans_b = Trans::kYes, .bias = row},
         ctx.compute);
  });
}

void ColumnLinear::forward_gelu(const LayerContext& ctx, Tensor out, Tensor pre, Tensor inp) const {
  const Tensor matrix = as_matrix(ctx.use(*weight), inp[1]);
  const Tensor row = bias == nullptr ? Tensor{} : ctx.use(*bias).flat();
  ctx.for_arriving(inp, ctx.splits.of(linear.place, Pass::kForward), [&](int64_t first, int64_t count) {
    gemm({.out = out.rows(first, count),
          .a = inp.rows(first, count),
          .b = matrix,
          .trans_b = Trans::kYes,
          .bias = row,
          .epilogue = Epilogue::kGelu,
          .pre = pre.rows(first, count)},
         ctx.compute);
  });
}

void ColumnLinear::backward_input(const LayerContext& ctx, const std::vector<RowBlock>& dinp, Tensor dout, float beta,
                                  Then then) const {
  for (const RowBlock& block : dinp) {
    const Tensor rows = dout.rows(block.first, block.out[0]);
    if (is_fp8(dout.dtype))
      ctx.fp8->backward_input(fp8(), block.out, rows, beta);
    else
      gemm({.out = block.out, .a = rows, .b = as_matrix(ctx.use(*weight), block.out[1]), .beta = beta}, ctx.compute);
    if (then == Then::kSend) ctx.send(block);
  }
}

void ColumnLinear::backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const {
  ctx.need(inp);
  add_gradients(ctx, *weight, bias, dout, inp);
}

void ColumnLinear::backward_weight_alone(const LayerContext& ctx, Tensor dout, Tensor inp) const {
  ctx.need(inp);
  add_gradients(ctx, *weight, nullptr, dout, inp);
}

Tensor ColumnLinear::bias_gradient(const LayerContext& ctx) const { return gradient_of(ctx, bias); }

void ColumnLinear::bias_gradient_ready(const LayerContext& ctx) const {
  if (bias != nullptr) ctx.hooks.gradient_ready(*bias);
}

void ColumnLinear::backward_weight_fp8(const LayerContext& ctx, Tensor dout_t, Tensor inp_t) const {
  add_fp8_gradient(ctx, fp8(), dout_t, inp_t);
}

RowLinear RowLinear::bind(Branch branch, const LinearSpec& spec, const LayerSpec& layer_spec,
                          const std::vector<Parameter>& parameters, int layer) {
  return {layer_spec.id(layer, branch, spec), find_weight(parameters, spec.module, layer),
          find_bias(parameters, spec.module, layer)};
}

void RowLinear::forward(const LayerContext& ctx, const std::vector<RowBlock>& out, Tensor inp, float beta,
                        Then then) const {
  for (const RowBlock& block : out) {
    const Tensor rows = inp.rows(block.first, block.out[0]);
    if (is_fp8(inp.dtype))
      ctx.fp8->forward(fp8(), block.out, rows, beta, {});
    else
      gemm(
          {.out = block.out, .a = rows, .b = as_matrix(ctx.use(*weight), inp[1]), .trans_b = Trans::kYes, .beta = beta},
          ctx.compute);
    if (then == Then::kSend) ctx.send(block);
  }
}

void RowLinear::backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const {
  ctx.need(dout);
  if (bias != nullptr && ctx.tp.size() > 1) {
    bias_backward({.dbias = ctx.hooks.gradient(*bias).flat(), .dout = ctx.local_rows(dout)}, ctx.compute);
    ctx.hooks.gradient_ready(*bias);
  }
  add_gradients(ctx, *weight, ctx.tp.size() > 1 ? nullptr : bias, dout, inp);
}

void RowLinear::backward_weight_fp8(const LayerContext& ctx, Tensor dout_t, Tensor inp_t) const {
  add_fp8_gradient(ctx, fp8(), dout_t, inp_t);
}

Tensor RowLinear::bias_gradient(const LayerContext& ctx) const { return gradient_of(ctx, bias); }

void RowLinear::bias_gradient_ready(const LayerContext& ctx) const {
  if (bias != nullptr) ctx.hooks.gradient_ready(*bias);
}

void RowLinear::add_bias_gradient(const LayerContext& ctx, Tensor local_dout) const {
  if (bias == nullptr) return;
  bias_backward({.dbias = bias_gradient(ctx), .dout = local_dout}, ctx.compute);
  bias_gradient_ready(ctx);
}

void RowLinear::backward_input(const LayerContext& ctx, Tensor dinp, Tensor dout) const {
  const Tensor matrix = as_matrix(ctx.use(*weight), dinp[1]);
  ctx.for_arriving(dout, ctx.splits.of(linear.place, Pass::kBackward), [&](int64_t first, int64_t count) {
    if (is_fp8(dout.dtype))
      return ctx.fp8->backward_input(fp8(), dinp.rows(first, count), dout.rows(first, count), 0.0f);
    gemm({.out = dinp.rows(first, count), .a = dout.rows(first, count), .b = matrix}, ctx.compute);
  });
}

void RowLinear::backward_input_gelu(const LayerContext& ctx, Tensor dpre, Tensor dout, Tensor pre,
                                    const ColumnLinear& previous) const {
  const Tensor matrix = as_matrix(ctx.use(*weight), dpre[1]);
  const Tensor dbias = previous.bias == nullptr ? Tensor{} : ctx.hooks.gradient(*previous.bias).flat();
  const OverlapSplit split = ctx.splits.of(linear.place, Pass::kBackward);
  // Only an undivided GEMM sums a column over all rows in order.
  const bool undivided = ctx.tp.splits(dout, split).size() == 1;
  ctx.for_arriving(dout, split, [&](int64_t first, int64_t count) {
    gemm({.out = dpre.rows(first, count),
          .a = dout.rows(first, count),
          .b = matrix,
          .epilogue = Epilogue::kGeluBackward,
          .pre = pre.rows(first, count),
          .dbias = undivided ? dbias : Tensor{}},
         ctx.compute);
  });
  if (!undivided && !dbias.empty()) bias_backward({.dbias = dbias, .dout = dpre}, ctx.compute);
  if (previous.bias != nullptr) ctx.hooks.gradient_ready(*previous.bias);
}

Tensor transposed_input(const LayerContext& ctx, const LinearId& linear, Tensor rows) {
  ctx.need(rows);
  const Tensor out = ctx.work.fp8.input_transpose;
  return is_fp8(rows.dtype) ? ctx.fp8->transposed(rows, out) : ctx.fp8->cast_transposed(linear, rows, out);
}

Tensor transposed_stream_gradient(const LayerContext& ctx, const RowLinear& linear) {
  const LayerWorkspace& w = ctx.work;
  if (!ctx.weights_are_due) ctx.need(w.fp8.dstream);
  if (ctx.tp.size() == 1 || ctx.weights_are_due) return w.fp8.dstream_t;
  linear.add_bias_gradient(ctx, ctx.local_rows(w.dbranch));
  return ctx.fp8->transposed(w.fp8.dstream, w.fp8.dstream_t);
}

}  // namespace tri
