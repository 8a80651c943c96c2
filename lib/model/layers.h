// The building bricks of a stage: norms, column- and row-parallel products, and the context they all work in.
#pragma once

#include "lib/comm/comm_group.h"
#include "lib/model/stage_tensors.h"

namespace tri {

// Value of the residual stream = inp + add + add_bias; a fresh stage input has no `add`.
struct ResidualStream {
  Tensor inp;       // (Rl, C)
  Tensor add;       // (Rl, C), optional
  Tensor add_bias;  // (C), optional
};

// What every layer of a stage works with.
struct LayerContext {
  const Config& config;
  const StageDims dims;
  const Workspace& work;
  Stream& compute;
  Channel& tp;
  ParameterHooks& hooks;

  // This tp rank's rows of a gathered (R, n) tensor.
  Tensor own_rows(Tensor gathered) const { return gathered.rows(tp.rank() * dims.Rl, dims.Rl); }
  // Completes `rows` (R, C) from every tp rank's own rows.
  void gather(Tensor rows) const;
  // Sums `rows` (R, C) over tp into the own rows. Work enqueued between start and finish runs beside it and must not
  // touch `rows`.
  void start_reduce(Tensor rows) const;
  void finish_reduce() const;

  // The weight, ready to be read on the compute stream.
  Tensor use(const Parameter& parameter) const {
    hooks.before_use(parameter);
    return parameter.weight;
  }
};

const Parameter* find_parameter(const std::vector<Parameter>& parameters, const std::string& name);  // null if absent

// weight and bias under `name`; bias may be absent.
struct NormLayer {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;

  static NormLayer bind(const std::vector<Parameter>& parameters, const std::string& name);
  // Norms the rows of `stream` (whose sum is written to `sum` when there is something to add) into the own rows of
  // `gathered` (R, C), and gathers them.
  void forward(const LayerContext& ctx, ResidualStream stream, Tensor sum, Tensor mean, Tensor rstd,
               Tensor gathered) const;
  // dinp (Rl, C) = dresidual + gradient through the norm of `dout` (Rl, C). `inp`: the forward's sum.
  void backward(const LayerContext& ctx, Tensor dinp, Tensor dresidual, Tensor dout, Tensor inp, Tensor mean,
                Tensor rstd) const;
};

// Weight (N / tp, K): gathered rows in, this rank's columns out.
struct ColumnLinear {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;

  static ColumnLinear bind(const std::vector<Parameter>& parameters, const std::string& name);
  void forward(const LayerContext& ctx, Tensor out, Tensor inp) const;
  // pre (R, N / tp) = inp · weight^T + bias, out = gelu(pre).
  void forward_gelu(const LayerContext& ctx, Tensor out, Tensor pre, Tensor inp) const;
  // dinp (R, K) = beta · dinp + dout · weight; a partial sum over tp.
  void backward_input(const LayerContext& ctx, Tensor dinp, Tensor dout, float beta) const;
  // After RowLinear::backward_gelu, which has dealt with the bias: backward_weight_alone.
  void backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const;
  void backward_weight_alone(const LayerContext& ctx, Tensor dout, Tensor inp) const;
};

// Weight (N, K / tp): this rank's columns in, a partial sum over tp out. The bias joins after the sum, in the next
// norm.
struct RowLinear {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;

  static RowLinear bind(const std::vector<Parameter>& parameters, const std::string& name);
  void forward(const LayerContext& ctx, Tensor out, Tensor inp, float beta) const;
  Tensor bias_to_add(const LayerContext& ctx) const { return bias == nullptr ? Tensor{} : ctx.use(*bias); }
  // `dout` (R, N) gathered; dinp (R, K / tp) overwritten. The bias sees the own rows only.
  void backward(const LayerContext& ctx, Tensor dinp, Tensor dout, Tensor inp) const;
  // The same where inp = gelu(pre), pre (R, K / tp) from `previous`: dpre, and the gradient of that layer's bias.
  void backward_gelu(const LayerContext& ctx, Tensor dpre, Tensor dout, Tensor inp, Tensor pre,
                     const ColumnLinear& previous) const;

 private:
  void backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const;
};

}  // namespace tri
