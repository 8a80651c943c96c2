#include "lib/model/fp8.h"

#include "kernels/ops.h"
#include "lib/model/layer_division.h"
#include "lib/model/layers.h"

namespace tri {
namespace {

// Returns (columns, rows) of `format` at the beginning of `scratch`.
Tensor transpose_in(Tensor scratch, Dtype format, int64_t rows, int64_t columns) {
  scratch.dtype = format;
  return scratch.flat(0, rows * columns).view({columns, rows});
}

}  // namespace

Fp8Layers::Fp8Layers(const Config& config, const Mesh& mesh, Fp8Tensors tensors, Stream& compute, GroupOnStream& tp,
                     ParameterHooks& hooks)
    : config_(config),
      tensors_(std::move(tensors)),
      slots_(config),
      compute_(compute),
      tp_(tp),
      hooks_(hooks),
      first_weight_(slots_.of(Fp8Operand::kWeight, 0, 0)),
      num_weights_(slots_.linears()),
      made_(static_cast<size_t>(num_weights_), false) {
  for (int chunk = 0; chunk < config.parallel.chunks; ++chunk)
    first_layer_.push_back(layers_of(config, mesh.axis("pp"), chunk).first);
}

void Fp8Layers::begin(Run run) {
  made_.assign(made_.size(), false);
  // Weights stored in FP8 are not cast in a run.
  const int64_t quantized = keeps_fp8_weights(config_) ? num_weights_ : 0, after = first_weight_ + quantized;
  for (const auto& [first, count] :
       {std::pair(int64_t{0}, first_weight_), std::pair(after, tensors_.slots() - after)}) {
    if (run == Run::kStep) compute_.zero(tensors_.counts.rows(first, count).flat());
    if (run == Run::kStep || !has_history_) compute_.zero(tensors_.amax().flat(first, count));
    if (!has_history_) compute_.zero(tensors_.scale().flat(first, count));
  }
}

void Fp8Layers::begin_quantized_weights() {
  compute_.zero(tensors_.amax().flat(first_weight_, num_weights_));
  compute_.zero(tensors_.counts.rows(first_weight_, num_weights_).flat());
}

void Fp8Layers::begin_weight_scales() {
  begin_quantized_weights();
  compute_.zero(tensors_.scale().flat(first_weight_, num_weights_));
}

void Fp8Layers::make_weight_scales(GroupOnStream& world) {
  const Tensor amax = tensors_.amax().flat(first_weight_, num_weights_);
  if (world.size() > 1) {
    world.after(compute_);
    world.all_reduce(amax, ReduceOp::kMax);
    world.before(compute_);
  }
  fp8_scales({.from = ScalesFrom::kUnset,
              .format = format(Fp8Operand::kWeight),
              .scale = tensors_.scale().flat(first_weight_, num_weights_),
              .inverse = tensors_.inverse.rows(first_weight_, num_weights_),
              .amax = amax},
             compute_);
  begin_quantized_weights();
}

int64_t Fp8Layers::slot(Fp8Operand operand, const LinearId& linear) const {
  const int index = operand == Fp8Operand::kInput      ? linear.input
                    : operand == Fp8Operand::kGradient ? linear.gradient
                                                       : linear.index;
  return slots_.of(operand, linear.layer, index);
}

Dtype Fp8Layers::format(Fp8Operand operand) const {
  return operand == Fp8Operand::kGradient ? config_.precision.fp8_gradients : Dtype::kE4M3;
}

Fp8Accumulation Fp8Layers::accumulation(Pass pass) const {
  const FastAccumulation fast = config_.precision.fp8_fast_accumulation;
  const bool here = fast == FastAccumulation::kAll || (fast == FastAccumulation::kForward && pass == Pass::kForward);
  return here ? Fp8Accumulation::kFast : Fp8Accumulation::kFp32;
}

Fp8Cast Fp8Layers::cast_of(int64_t at) const {
  return {
      .scale = of(tensors_.scale(), at), .amax = of(tensors_.amax(), at), .counts = tensors_.counts.rows(at, 1).flat()};
}

void Fp8Layers::find_scale(Fp8Operand operand, int64_t at, Tensor inp, Tensor used, GroupOnStream* receivers) {
  if (has_history_) return;
  const Tensor amax = of(tensors_.amax(), at);
  fp8_amax({.amax = amax, .inp = inp, .used = used}, compute_);
  for (GroupOnStream* const group : {&tp_, receivers}) {
    if (group == nullptr || group->size() == 1) continue;
    group->after(compute_);
    group->all_reduce(amax, ReduceOp::kMax);
    group->before(compute_);
  }
  fp8_scales({.from = ScalesFrom::kUnset,
              .format = format(operand),
              .scale = of(tensors_.scale(), at),
              .inverse = tensors_.inverse.rows(at, 1),
              .amax = amax},
             compute_);
}

void Fp8Layers::cast(Fp8Operand operand, const LinearId& linear, Tensor inp, Tensor out, Tensor out_t, Tensor dbias,
                     Tensor used) {
  const int64_t at = slot(operand, linear);
  find_scale(operand, at, inp, used, nullptr);
  Fp8Cast c = cast_of(at);
  c.out = out;
  c.out_t = out_t;
  c.inp = inp;
  c.dbias = dbias;
  c.used = used;
  fp8_cast(c, compute_);
}

void Fp8Layers::cast_for(GroupOnStream* receivers, Fp8Operand operand, const LinearId& linear, Tensor inp, Tensor out,
                         Tensor used) {
  const int64_t at = slot(operand, linear);
  find_scale(operand, at, inp, used, receivers);
  Fp8Cast c = cast_of(at);
  c.out = out;
  c.inp = inp;
  c.used = used;
  fp8_cast(c, compute_);
}

void Fp8Layers::norm_forward(const LinearId& linear, NormForward norm, Tensor out, Tensor scratch) {
  if (!has_history_) {
    norm.out = scratch;
    tri::norm_forward(norm, compute_);
    return cast(Fp8Operand::kInput, linear, scratch, out);
  }
  Fp8Cast c = cast_of(slot(Fp8Operand::kInput, linear));
  c.out = out;
  fp8_norm_forward({.norm = norm, .cast = c}, compute_);
}

void Fp8Layers::activation_forward(Activation kind, const LinearId& linear, Tensor out, Tensor out_t, Tensor inp,
                                   Tensor scratch, Tensor used) {
  if (!has_history_) {
    tri::activation_forward({.kind = kind, .out = scratch, .inp = inp, .used = used}, compute_);
    return cast(Fp8Operand::kInput, linear, scratch, out, out_t, {}, used);
  }
  Fp8Cast c = cast_of(slot(Fp8Operand::kInput, linear));
  c.used = used;
  c.out = out;
  c.out_t = out_t;
  fp8_activation_forward({.kind = kind, .inp = inp, .cast = c}, compute_);
}

void Fp8Layers::activation_backward(Activation kind, const LinearId& linear, Tensor out, Tensor out_t, Tensor dbias,
                                    Tensor dactivated, Tensor inp, Tensor scratch, Tensor used) {
  if (!has_history_) {
    tri::activation_backward({.kind = kind, .dinp = scratch, .dout = dactivated, .inp = inp, .used = used}, compute_);
    return cast(Fp8Operand::kGradient, linear, scratch, out, out_t, dbias, used);
  }
  Fp8Cast c = cast_of(slot(Fp8Operand::kGradient, linear));
  c.used = used;
  c.out = out;
  c.out_t = out_t;
  c.dbias = dbias;
  fp8_activation_backward({.kind = kind, .dout = dactivated, .inp = inp, .cast = c}, compute_);
}

Tensor Fp8Layers::cast_transposed(const LinearId& linear, Tensor inp, Tensor scratch) {
  const Tensor out_t = transpose_in(scratch, Dtype::kE4M3, inp[0], inp[1]);
  fp8_cast({.out_t = out_t, .inp = inp, .scale = of(tensors_.scale(), slot(Fp8Operand::kInput, linear))}, compute_);
  return out_t;
}

Tensor Fp8Layers::transposed(Tensor rows, Tensor scratch, Tensor used) {
  const Tensor out = transpose_in(scratch, rows.dtype, rows[0], rows[1]);
  fp8_transpose({.out = out, .inp = rows, .used = used}, compute_);
  return out;
}

// The weight is cast or transposed at its first use in a run of a plan, after the update's values have arrived.
Fp8Weight Fp8Layers::weight(const Fp8Linear& l, Pass pass) {
  hooks_.before_use(*l.weight);
  const int chunk = l.weight->chunk, first = first_layer_[static_cast<size_t>(chunk)];
  Fp8Weight weight = tensors_.weights[static_cast<size_t>(chunk)][static_cast<size_t>(l.linear.layer - first)]
                                     [static_cast<size_t>(l.linear.index)];
  const Tensor& of_weight = weight.transposed;
  const bool is_quantized = is_fp8(l.weight->weight.dtype), has_experts = of_weight.dims == 3;
  const int64_t columns = of_weight[of_weight.dims - 2];
  const Tensor matrix = as_matrix(l.weight->weight, columns);
  if (is_quantized) weight.values = has_experts ? matrix.view({of_weight[0], of_weight[2], columns}) : matrix;
  const auto at = static_cast<size_t>(slots_.place(l.linear.layer, l.linear.index));
  if (made_[at] || (is_quantized && pass == Pass::kForward)) return weight;
  made_[at] = true;
  if (!is_quantized)
    cast(Fp8Operand::kWeight, l.linear, matrix, as_matrix(weight.values, columns),
         has_experts ? Tensor{} : weight.transposed);
  if (is_quantized || has_experts) fp8_transpose({.out = weight.transposed, .inp = weight.values}, compute_);
  return weight;
}

void Fp8Layers::forward(const Fp8Linear& l, Tensor out, Tensor inp, float beta, Tensor bias) {
  const Fp8Weight w = weight(l, Pass::kForward);
  fp8_gemm({.out = out,
            .a = inp,
            .b = w.values,
            .inverse_a = inverse(slot(Fp8Operand::kInput, l.linear)),
            .inverse_b = inverse(slot(Fp8Operand::kWeight, l.linear)),
            .beta = beta,
            .bias = bias,
            .accumulation = accumulation(Pass::kForward)},
           compute_);
}

void Fp8Layers::backward_input(const Fp8Linear& l, Tensor dinp, Tensor dout, float beta) {
  const Fp8Weight w = weight(l, Pass::kBackward);
  fp8_gemm({.out = dinp,
            .a = dout,
            .b = w.transposed,
            .inverse_a = inverse(slot(Fp8Operand::kGradient, l.linear)),
            .inverse_b = inverse(slot(Fp8Operand::kWeight, l.linear)),
            .beta = beta,
            .accumulation = accumulation(Pass::kBackward)},
           compute_);
}

void Fp8Layers::backward_weight(const Fp8Linear& l, Tensor dweight, Tensor dout_t, Tensor inp_t, float beta) {
  fp8_gemm({.out = as_matrix(dweight, inp_t[0]),
            .a = dout_t,
            .b = inp_t,
            .inverse_a = inverse(slot(Fp8Operand::kGradient, l.linear)),
            .inverse_b = inverse(slot(Fp8Operand::kInput, l.linear)),
            .beta = beta,
            .accumulation = accumulation(Pass::kBackward)},
           compute_);
}

void Fp8Layers::experts_forward(const Fp8Linear& l, Tensor out, Tensor inp, Tensor offsets) {
  const Fp8Weight w = weight(l, Pass::kForward);
  grouped_fp8_gemm({.out = out,
                    .a = inp,
                    .b = w.values,
                    .offsets = offsets,
                    .inverse_a = inverse(slot(Fp8Operand::kInput, l.linear)),
                    .inverse_b = inverse(slot(Fp8Operand::kWeight, l.linear)),
                    .accumulation = accumulation(Pass::kForward)},
                   compute_);
}

void Fp8Layers::experts_backward_input(const Fp8Linear& l, Tensor dinp, Tensor dout, Tensor offsets) {
  const Fp8Weight w = weight(l, Pass::kBackward);
  grouped_fp8_gemm({.out = dinp,
                    .a = dout,
                    .b = w.transposed,
                    .offsets = offsets,
                    .inverse_a = inverse(slot(Fp8Operand::kGradient, l.linear)),
                    .inverse_b = inverse(slot(Fp8Operand::kWeight, l.linear)),
                    .accumulation = accumulation(Pass::kBackward)},
                   compute_);
}

void Fp8Layers::experts_backward_weight(const Fp8Linear& l, Tensor dweight, Tensor dout_t, Tensor inp_t, Tensor offsets,
                                        float beta) {
  grouped_fp8_gradient({.dweight = dweight,
                        .dout_t = dout_t,
                        .inp_t = inp_t,
                        .offsets = offsets,
                        .inverse_a = inverse(slot(Fp8Operand::kGradient, l.linear)),
                        .inverse_b = inverse(slot(Fp8Operand::kInput, l.linear)),
                        .beta = beta,
                        .accumulation = accumulation(Pass::kBackward)},
                       compute_);
}

void Fp8Layers::count() {
  fp8_counts_to_float({.out = tensors_.float_counts, .counts = tensors_.counts.flat()}, compute_);
}

void Fp8Layers::reduce(GroupOnStream& world) {
  if (world.size() == 1) return;
  world.after(compute_);
  world.all_reduce(tensors_.amax(), ReduceOp::kMax);
  world.before(compute_);
}

void Fp8Layers::make_scales(ScalesFrom from, Tensor grad_scale) {
  const int64_t gradients = slots_.of(Fp8Operand::kGradient, 0, 0);
  for (const auto& [first, count, of_format] :
       {std::tuple(int64_t{0}, gradients, Dtype::kE4M3),
        std::tuple(gradients, tensors_.slots() - gradients, format(Fp8Operand::kGradient))})
    fp8_scales({.from = from,
                .format = of_format,
                .scale = tensors_.scale().flat(first, count),
                .inverse = tensors_.inverse.rows(first, count),
                .amax = tensors_.amax().flat(first, count),
                .history = tensors_.history().flat(first, count),
                .grad_scale = grad_scale,
                .decay = kFp8HistoryDecay},
               compute_);
}

void Fp8Layers::update(Tensor grad_scale) {
  make_scales(ScalesFrom::kStep, grad_scale);
  if (keeps_fp8_weights(config_)) begin_quantized_weights();
}

std::vector<float> Fp8Layers::saved_history(std::span<const float> history) const {
  const Layers layers = layers_of_model(config_);
  std::vector<float> kept(history.begin(), history.end());
  for (size_t i = 0; i < kept.size(); ++i)
    if (!layers[slots_.layer_of(static_cast<int64_t>(i))].fp8) kept[i] = 0.0f;
  return kept;
}

void Fp8Layers::load_history(std::span<const float> history) {
  TRI_REQUIRE(static_cast<int64_t>(history.size()) == tensors_.slots(), "the history has {} slots, expected {}",
              history.size(), tensors_.slots());
  compute_.copy(tensors_.history().data, history.data(), static_cast<int64_t>(history.size_bytes()));
  make_scales(ScalesFrom::kHistory, {});
  compute_.synchronize();  // the caller owns `history`
  has_history_ = true;
  const Layers layers = layers_of_model(config_);
  for (int layer = 0; layer < config_.model.layers; ++layer)  // norms are never all zero
    if (layers[layer].fp8 && history[static_cast<size_t>(slots_.of(Fp8Operand::kInput, layer, 0))] == 0.0f)
      has_history_ = false;
}

}  // namespace tri
