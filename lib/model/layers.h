// The building blocks of a stage: norms, column- and row-parallel GEMMs, and the context that they share. All enqueue
// on the compute stream; call only from the training thread.
#pragma once

#include <array>

#include "kernels/rope.h"
#include "lib/comm/groups/axis_transfers.h"
#include "lib/model/fp8.h"
#include "lib/model/stage_tensors.h"

namespace tri {

// Returns a weight of any shape as the matrix (N, K) of a GEMM with K columns.
inline Tensor as_matrix(Tensor weight, int64_t columns) { return weight.view({weight.numel() / columns, columns}); }

// The residual stream has the value inp + add + add_bias. A new stage input has no `add`.
struct ResidualStream {
  Tensor inp;       // (Rl, C)
  Tensor add;       // (Rl, C) or in parts (tp or 1, Rl, C), optional
  Tensor add_bias;  // (C), optional
};

// How the linears are split to overlap their transfers, the same in all layers: lib/tune/overlap_splits.
// Column-parallel linears read gathered rows forward and compute partial sums backward; row-parallel ones do the
// reverse.
struct OverlapSplits {
  // [Branch][LinearSplit]. The defaults: weight gradients hide most of a backward transfer, so splits would only cost
  // time.
  using OfPass = std::array<std::array<OverlapSplit, 2>, 2>;
  OfPass forward{};
  OfPass backward{{{OverlapSplit{.num_splits = 1}, OverlapSplit{.num_splits = 2}},
                   {OverlapSplit{.num_splits = 1}, OverlapSplit{.num_splits = 2}}}};

  OverlapSplit& of(LinearPlace linear, Pass pass) {
    return (pass == Pass::kForward ? forward
                                   : backward)[static_cast<size_t>(linear.branch)][static_cast<size_t>(linear.split)];
  }
  OverlapSplit of(LinearPlace linear, Pass pass) const { return const_cast<OverlapSplits&>(*this).of(linear, pass); }
  bool operator==(const OverlapSplits&) const = default;
};

// The context of every layer of a stage.
struct LayerContext {
  const Config& config;
  const StageDims dims;
  const LayerWorkspace& work;
  Stream& compute;
  AxisTransfers& tp;
  const OverlapSplits& splits;
  ParameterHooks& hooks;
  Fp8Layers* const fp8 = nullptr;     // null: no layer's GEMMs are FP8
  GroupOnStream* const cp = nullptr;  // if cp has several ranks; may be null where only GEMMs run
  // (B, T) i32 of the microbatch, of whole samples: the position in its sample at which each token's document starts;
  // absent: 0
  Tensor document_starts = {};
  const MoeRun* moe = nullptr;  // not null where layers with experts run
  // In a kWeight action: the workspace holds what the backward pass has left, with transposes already made.
  bool weights_are_due = false;

  // Returns the context with another workspace, which must outlive it.
  LayerContext with(const LayerWorkspace& other) const {
    return {.config = config,
            .dims = dims,
            .work = other,
            .compute = compute,
            .tp = tp,
            .splits = splits,
            .hooks = hooks,
            .fp8 = fp8,
            .cp = cp,
            .document_starts = document_starts,
            .moe = moe,
            .weights_are_due = weights_are_due};
  }

  // This tp rank's rows of a gathered (R, n) tensor.
  Tensor local_rows(Tensor gathered) const { return tp.local_rows(gathered); }
  // Completes `rows` (R, C) from every tp rank's local rows. begin_gather() comes before the local rows are computed
  // and start_gather() after. Readers then process the rows that have arrived, or call need().
  void begin_gather(Tensor rows) const {
    tp.wait_until_read(compute);
    tp.begin_gather(rows, compute);
  }
  void start_gather(Tensor rows) const { tp.start_gather(rows, compute); }
  void gather(Tensor rows) const {  // for local rows that are already computed
    begin_gather(rows);
    start_gather(rows);
  }
  // Calls gemm(first, count), which reads only rows [first, first + count), for each split once its rows have arrived.
  template <class Gemm>
  void for_arriving(Tensor rows, OverlapSplit split, Gemm gemm) const {
    for (const RowSplit& part : tp.splits(rows, split)) {
      tp.wait_split(rows, part, compute);
      gemm(part.first, part.count);
    }
    tp.finish_gather(rows, compute);
  }
  // Makes compute wait until all rows have arrived. It may then overwrite the local ones.
  void need(Tensor rows) const;

  // Sums partial `rows` (R, C) over tp for the ranks that own them: a GEMM computes the blocks and send() sends each.
  // Work enqueued before finish_reduce() overlaps the transfer and must not touch `rows`.
  std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split) const {
    tp.wait_until_read(compute);
    return tp.begin_reduce(rows, split, compute);
  }
  void send(const RowBlock& block) const { tp.send(block, compute); }
  Tensor finish_reduce() const { return tp.finish_reduce(compute); }  // the local rows' sum, in parts (tp or 1, Rl, C)

  // Returns the weight, ready to be read on the compute stream.
  Tensor use(const Parameter& parameter) const {
    hooks.before_use(parameter);
    return parameter.weight;
  }
};

// A norm. The bias may be absent.
struct NormLayer {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;
  LinearId reader = {};  // the linear for which FP8 rows are cast

  static NormLayer bind(const std::vector<Parameter>& parameters, std::string_view module, int layer = kNoLayer);
  // Norms the rows of `stream` into the local rows of `rows` (R, C), writes their sum to `sum` if there is something to
  // add, and gathers the rows. If they are FP8, a step without scales overwrites work.normed.
  void forward(const LayerContext& ctx, ResidualStream stream, Tensor sum, const NormTensors& t, Tensor rows) const;
  // The same into `local` (Rl, C), which are not gathered.
  void forward_local(const LayerContext& ctx, ResidualStream stream, Tensor sum, const NormTensors& t,
                     Tensor local) const;
  // Norms `inp` (Rl, C), the output of a branch, into `out` (Rl, C).
  void forward(const LayerContext& ctx, Tensor out, Tensor inp, const NormTensors& t) const;
  // dinp (Rl, C) = dresidual + gradient through the norm of `dout`, (Rl, C) or in parts. `inp`: the forward pass's sum;
  // `t` provides the statistics.
  void backward(const LayerContext& ctx, Tensor dinp, Tensor dresidual, Tensor dout, Tensor inp,
                const NormTensors& t) const;
};

// What happens to the blocks of a partial sum after the GEMM.
enum class Then { kKeep, kSend };

// A linear multiplies FP8 if its rows are FP8. Gradients of FP8 weights read transposed casts; the bias gradient reads
// the rows before the cast.

// Weight (N / tp, K): gathered rows in, this rank's columns out.
struct ColumnLinear {
  LinearId linear;
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;

  static ColumnLinear bind(Branch branch, const LinearSpec& spec, const LayerSpec& layer_spec,
                           const std::vector<Parameter>& parameters, int layer);
  void forward(const LayerContext& ctx, Tensor out, Tensor inp) const;
  // pre (R, N / tp) = inp · weight^T + bias, out = gelu(pre).
  void forward_gelu(const LayerContext& ctx, Tensor out, Tensor pre, Tensor inp) const;
  // dinp (R, K) = beta · dinp + dout · weight; a partial sum over tp, in blocks.
  void backward_input(const LayerContext& ctx, const std::vector<RowBlock>& dinp, Tensor dout, float beta,
                      Then then) const;
  // backward_weight_alone: without the bias, after RowLinear::backward_input_gelu, which has handled it.
  void backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const;
  void backward_weight_alone(const LayerContext& ctx, Tensor dout, Tensor inp) const;
  // dout_t (N / tp, R), inp_t (K, R) FP8. The cast to dout_t has added to the bias gradient.
  void backward_weight_fp8(const LayerContext& ctx, Tensor dout_t, Tensor inp_t) const;
  Tensor bias_gradient(const LayerContext& ctx) const;  // (N / tp), absent without a bias
  void bias_gradient_ready(const LayerContext& ctx) const;

 private:
  Fp8Linear fp8() const { return {linear, weight}; }
};

// Weight (N, K / tp): this rank's columns in, a partial sum over tp out. The next norm adds the bias after the sum.
struct RowLinear {
  LinearId linear;
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;

  static RowLinear bind(Branch branch, const LinearSpec& spec, const LayerSpec& layer_spec,
                        const std::vector<Parameter>& parameters, int layer);
  // out (R, N) = beta · out + inp · weight^T, in blocks.
  void forward(const LayerContext& ctx, const std::vector<RowBlock>& out, Tensor inp, float beta, Then then) const;
  Tensor bias_to_add(const LayerContext& ctx) const { return bias == nullptr ? Tensor{} : ctx.use(*bias); }
  // `dout` (R, N) is gathered, and may still be arriving; overwrites dinp (R, K / tp).
  void backward_input(const LayerContext& ctx, Tensor dinp, Tensor dout) const;
  // The same if inp = gelu(pre), with pre (R, K / tp) from `previous`: computes dpre and the gradient of that layer's
  // bias.
  void backward_input_gelu(const LayerContext& ctx, Tensor dpre, Tensor dout, Tensor pre,
                           const ColumnLinear& previous) const;
  // The bias gradient uses only the local rows.
  void backward_weight(const LayerContext& ctx, Tensor dout, Tensor inp) const;
  // dout_t (N, R), inp_t (K / tp, R) FP8. The bias gradient uses only the local rows: through the cast, or
  // add_bias_gradient.
  void backward_weight_fp8(const LayerContext& ctx, Tensor dout_t, Tensor inp_t) const;
  Tensor bias_gradient(const LayerContext& ctx) const;  // (N), absent without a bias
  void bias_gradient_ready(const LayerContext& ctx) const;
  void add_bias_gradient(const LayerContext& ctx, Tensor local_dout) const;  // local_dout (Rl, N)

 private:
  Fp8Linear fp8() const { return {linear, weight}; }
};

// For FP8 weight gradients: returns the transpose (n, R) of rows (R, n) that `linear` reads, in the workspace. Casts
// the rows if they were saved in the compute type.
Tensor transposed_input(const LayerContext& ctx, const LinearId& linear, Tensor rows);
// Returns the transpose of the gathered gradient of the residual stream. With more than one tp rank it also adds the
// gradient of the bias of `linear` from the local rows; otherwise the cast to FP8 has done both.
Tensor transposed_stream_gradient(const LayerContext& ctx, const RowLinear& linear);

}  // namespace tri
