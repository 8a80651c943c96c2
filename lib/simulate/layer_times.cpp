#include "lib/simulate/layer_times.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "lib/model/block_order.h"
#include "lib/model/parameter.h"
#include "lib/model/stage_tensors.h"
#include "lib/simulate/document_samples.h"

namespace tri {
namespace {

// Returns the exposed time of a transfer during `alongside` seconds of compute, which hides a part and becomes slower.
double exposed_beside(const Cluster& c, double transfer, double alongside) {
  const double hidden = std::min(transfer * c.software.hidden_share, alongside);
  return transfer - hidden + hidden * c.software.beside_slowdown;
}

// Adds kernels of one pass of a layer to its times.
class Kernels {
 public:
  Kernels(const Workload& w, const Cluster& c) : w_(w), c_(c) {}

  double gemm(double m, double n, double k, double output_bytes) {
    const double seconds = gemm_seconds(c_, w_.numbers, m, n, k, output_bytes);
    times_.gemm += seconds;
    ++started_;
    return seconds;
  }
  // The products of a rank's experts.
  double grouped(double groups, GroupSizes sizes, double m, double n, double k, double output_bytes) {
    const double seconds = grouped_gemm_seconds(c_, w_.numbers, groups, sizes, m, n, k, output_bytes);
    times_.gemm += seconds;
    ++started_;
    return seconds;
  }
  double memory(double bytes, int kernels = 1) {
    started_ += kernels;
    const double seconds = bytes / memory_bytes_per_second(c_) + kernels * c_.software.launch_us * 1e-6;
    times_.memory += seconds;
    return seconds;
  }
  // Time of kernels that neither bytes nor FLOPs bound.
  double wait(double seconds) {
    times_.memory += seconds;
    return seconds;
  }
  // Work on a GEMM's output that moves these bytes before the GEMM ends.
  double epilogue(double bytes) {
    const double seconds = bytes / memory_bytes_per_second(c_);
    times_.gemm += seconds;
    return seconds;
  }
  double attention(double seconds, int kernels) {
    times_.attention += seconds;
    started_ += kernels;
    return seconds;
  }
  // If the host is late, or the device waits for it at each kernel, the gaps count as memory time, as other gaps do.
  void wait_for_host() {
    const double host = started_ * c_.software.host_us * 1e-6;
    times_.memory += c_.software.blocking_launches ? host : std::max(0.0, host - times_.total());
  }
  PassTimes& times() { return times_; }

 private:
  const Workload& w_;
  const Cluster& c_;
  PassTimes times_;
  int started_ = 0;
};

// Sizes of one rank's share of one microbatch.
struct Sizes {
  double rows, local_rows, width;
  explicit Sizes(const Workload& w) {
    rows = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp;
    local_rows = w.sequence_parallel ? rows / w.tp : rows;
    width = w.model.hidden;
  }
};

struct AttentionTimes {
  double forward, backward;
  int forward_kernels = 1, backward_kernels = 2;
};

// Attention that writes its T x T scores, one kernel per step: GEMMs over the full square, and passes over the scores.
// Bytes per score in bf16: in forward the softmax reads and writes 4; the dropout reads and writes 4 and stores 1 of
// its mask. In backward the dropout moves as much; the softmax reads its result and a gradient and writes one, 6.
AttentionTimes attention_in_memory(const Workload& w, const AttentionSpec& attention, const Cluster& c,
                                   const Sizes& s) {
  constexpr double kForwardBytes = 9, kBackwardBytes = 11;
  const double rows = s.rows * attention.heads / w.tp, keys = attention.seq_len, head = attention.head_dim;
  const double bytes = activation_bytes(w.numbers), launch = c.software.launch_us * 1e-6;
  const Numbers numbers = w.numbers == Numbers::kFp8 ? Numbers::kBf16 : w.numbers;
  const double to_scores = gemm_seconds(c, numbers, rows, keys, head, bytes);
  const double to_rows = gemm_seconds(c, numbers, rows, head, keys, bytes);
  const double pass = bytes / 2 * rows * keys / memory_bytes_per_second(c);
  return {to_scores + to_rows + kForwardBytes * pass + 2 * launch,
          to_scores + 3 * to_rows + kBackwardBytes * pass + 2 * launch, 4, 6};
}

// Steps last as long as attention's on the dp rank whose documents are the longest: its time over the mean one.
double busiest(const Workload& w, const AttentionSpec& attention) {
  if (!w.documents || w.dp == 1) return 1;
  return 1 + w.documents->excess_of_busiest(attention.window, w.dp, static_cast<double>(w.global_batch) / w.dp);
}

AttentionTimes attention_times(const Workload& w, const AttentionSpec& attention, const Cluster& c, const Sizes& s) {
  const double peak = peak_flops(c, w.numbers == Numbers::kFp32 ? Numbers::kFp32 : Numbers::kBf16);
  if (c.software.scores_in_memory) return attention_in_memory(w, attention, c, s);
  const double keys = w.documents ? w.documents->keys_per_query(AttentionWork::kCausal, attention.window)
                                  : attention.keys_per_query(AttentionWork::kCausal);
  const double head = attention.head_dim;
  const double flops = 4 * s.rows * keys * (static_cast<double>(attention.width()) / w.tp) * busiest(w, attention);
  // Kernels process power-of-two heads and whole blocks of keys, so short sequences waste a part of them. A score takes
  // an exponential in addition to 4 FLOPs per element of the head. The file's rates apply to heads of 128.
  // A softcap takes two more: an exponential and a division.
  const double exponential = c.device.exponential_flops / 4 * (attention.softcap > 0 ? 3 : 1);  // in elements of a head
  constexpr double kOfRates = 128;
  const double kernel = std::max(64.0, std::exp2(std::ceil(std::log2(head))));
  const double padded = kernel / head * (1 + exponential / kernel) / (1 + exponential / kOfRates);
  const double waste = 1 + c.software.attention_ramp / (2 * keys);
  const double waste_backward = 1 + c.software.attention_ramp_backward / (2 * keys);
  // Trireme's backward pass has no wgmma for heads above 128: 229 instead of 437 TFLOP/s on an H100 (T 4096).
  const bool slow = c.software.name == "Trireme" && head > kHopperBackwardMaxHeadSize;
  const double rate = peak * c.software.attention_backward * (slow ? 0.52 : 1);
  return {flops * padded * waste / (peak * c.software.attention_forward), 2.5 * flops * padded * waste_backward / rate};
}

// The steps of a branch with experts, as in lib/model/moe.cpp. A rank has `local` rows, which choose `per_token`
// experts each; `arrived` of these pairs reach the experts of the fullest rank. The transfers of rows are exposed,
// since the compute stream waits for them; by copies compute hides a part. A kernel that moves rows reads and writes
// each once per pair.
class ExpertSteps {
 public:
  ExpertSteps(const Workload& w, const MoeSpec& moe, const Cluster& c, const TransferTimes& transfers)
      : w_(w), moe_(moe), c_(c), transfers_(transfers), local_(Sizes(w).rows / w.tp) {
    pairs_ = local_ * static_cast<double>(moe.per_token);
    arrived_ = is_divided() ? w.fullest_rank() * pairs_ : pairs_;
    row_bytes_ = static_cast<double>(moe.hidden) * activation_bytes(w.numbers);
  }

  void run(Step step, Kernels& kernels) const {
    const bool has_shared = moe_.shared_hidden > 0;
    const double bytes = activation_bytes(w_.numbers), experts = static_cast<double>(moe_.experts);
    const double hidden = static_cast<double>(moe_.hidden), shared = static_cast<double>(moe_.shared_hidden);
    const double shared_width = static_cast<double>(moe_.width_of(moe_.shared_hidden));
    const LinearSpec fc1 = expert_linear(0), fc2 = expert_linear(1);
    switch (step) {
      case Step::kColumnForward: {
        if (own_fp8()) kernels.memory(3 * local_ * hidden);  // the cast
        double alongside = kernels.gemm(local_, experts, hidden, 4);
        alongside += kernels.memory(local_ * 4 * (experts + 2 * static_cast<double>(moe_.per_token)), 2);  // the choice
        alongside += kernels.memory(4 * 4 * pairs_, 3);                                                    // the sort
        alongside += kernels.wait(c_.software.router_us * 1e-6);
        const double row_bytes = own_fp8() ? hidden : row_bytes_;
        if (!is_divided()) {
          kernels.memory(2 * pairs_ * row_bytes);
        } else if (w_.ep_copies) {
          share_tokens(row_bytes, alongside, kernels);
        } else {
          agree(kernels);
          kernels.memory(2 * pairs_ * row_bytes);
          send(row_bytes, kernels);
        }
        forward(fc1, kernels);
        if (has_shared) kernels.gemm(local_, shared_width, hidden, bytes);
        return;
      }
      case Step::kInnerForward:
      case Step::kInnerBackward: {
        const Pass pass = step == Step::kInnerForward ? Pass::kForward : Pass::kBackward;
        kernels.memory(local_ * moe_.activation_elements(pass) * bytes * arrived_ / pairs_, has_shared ? 2 : 1);
        if (pass == Pass::kBackward) {  // of the router
          kernels.memory(local_ * experts * (4 + bytes));
          kernels.wait(c_.software.router_us * 1e-6);
        }
        return;
      }
      case Step::kRowForward:
        forward(fc2, kernels);
        if (is_divided()) send_back(0, kernels);
        if (has_shared) kernels.gemm(local_, hidden, shared, bytes);
        kernels.memory((pairs_ + local_) * row_bytes_);
        return;
      case Step::kRowGradient:
        if (is_divided() && w_.ep_copies) {
          share_tokens(row_bytes_, kernels.memory((pairs_ + local_) * row_bytes_), kernels);
        } else {
          kernels.memory((2 * pairs_ + local_) * row_bytes_);
          if (is_divided()) send(own_fp8() ? hidden : row_bytes_, kernels);
        }
        if (own_fp8()) kernels.memory(3 * arrived_ * hidden);  // the cast
        gradient(fc2, kernels);
        if (has_shared) kernels.gemm(local_, shared, hidden, bytes);
        return;
      case Step::kColumnGradient:
        gradient(fc1, kernels);
        if (is_divided()) send_back(w_.ep_copies ? weight_gradient_seconds(fc2) : 0, kernels);
        kernels.gemm(local_, hidden, experts, bytes);
        if (has_shared) kernels.gemm(local_, hidden, shared_width, bytes);
        kernels.memory((pairs_ + 2 * local_) * row_bytes_);
        return;
      case Step::kRowWeight:
        weight_gradient(fc2, kernels);
        if (has_shared) kernels.gemm(hidden, shared, local_, gradient_bytes());
        return;
      case Step::kColumnWeight:
        weight_gradient(fc1, kernels);
        if (has_shared) kernels.gemm(shared_width, hidden, local_, gradient_bytes());
        kernels.gemm(experts, hidden, local_, gradient_bytes());
        return;
      default:
        return;
    }
  }

 private:
  bool is_divided() const { return w_.ep > 1; }
  double on_rank() const { return static_cast<double>(moe_.experts) / w_.ep; }  // experts
  double rows() const { return arrived_ / on_rank(); }                          // of an expert
  double gradient_bytes() const { return w_.gradient_bytes == 2 ? kWritesBf16 : kAddsFp32; }
  LinearSpec expert_linear(size_t index) const {
    std::vector<LinearSpec> linears = only<LinearSpec>(moe_.modules());
    std::erase_if(linears, [](const LinearSpec& linear) { return linear.experts == 0; });
    return linears.at(index);
  }
  bool own_fp8() const { return w_.own_experts && w_.numbers == Numbers::kFp8; }
  void casts(double width, Kernels& kernels) const {
    if (w_.numbers == Numbers::kFp8 && !w_.own_experts) kernels.memory(c_.software.cast_bytes * arrived_ * width);
  }
  void forward(const LinearSpec& linear, Kernels& kernels) const {
    const auto n = static_cast<double>(linear.n()), k = static_cast<double>(linear.k());
    kernels.grouped(on_rank(), GroupSizes::kUneven, rows(), n, k, activation_bytes(w_.numbers));
    casts(k, kernels);
  }
  void gradient(const LinearSpec& linear, Kernels& kernels) const {
    const auto n = static_cast<double>(linear.n()), k = static_cast<double>(linear.k());
    kernels.grouped(on_rank(), GroupSizes::kUneven, rows(), k, n, activation_bytes(w_.numbers));
    casts(n, kernels);
  }
  void weight_gradient(const LinearSpec& linear, Kernels& kernels) const {
    const auto n = static_cast<double>(linear.n()), k = static_cast<double>(linear.k());
    if (own_fp8()) kernels.memory(2 * arrived_ * static_cast<double>(moe_.hidden));  // transposes rows or gradients
    kernels.grouped(on_rank(), GroupSizes::kEqual, n, k, rows(), mean_gradient_bytes());
    if (c_.software.accumulate_bytes > 0) kernels.memory(c_.software.accumulate_bytes * on_rank() * n * k);
  }
  double weight_gradient_seconds(const LinearSpec& linear) const {
    return grouped_gemm_seconds(c_, w_.numbers, on_rank(), GroupSizes::kEqual, static_cast<double>(linear.n()),
                                static_cast<double>(linear.k()), rows(), mean_gradient_bytes());
  }
  // Of a step's microbatches. The first one writes fp32 and does not read.
  double mean_gradient_bytes() const {
    const double first = w_.own_experts && w_.gradient_bytes == 4 ? kAddsFp32 / 2 : 0;
    return gradient_bytes() - first / std::max(1, w_.num_microbatches());
  }

  Transfer over_ep(Collective kind, double bytes) const {
    return {kind, bytes, w_.ep, members_on_node(c_, 1, w_.ep), TransferAxis::kEp};
  }
  // Rows of pairs to or from the experts; the fullest rank receives more.
  double exchange_seconds(double row_bytes) const {
    return c_.software.skew_us * 1e-6 + transfers_.seconds(over_ep(Collective::kAllToAll, arrived_ * row_bytes));
  }
  void exchange(double row_bytes, Kernels& kernels) const {
    kernels.times().ep += exchange_seconds(row_bytes);
    kernels.memory(2 * pairs_ * row_bytes / w_.ep);  // the rank's own rows
  }
  // Numbers of rows, for which the host waits.
  void agree(Kernels& kernels) const {
    const double bytes = 4.0 * w_.ep * static_cast<double>(moe_.experts + 1);
    kernels.times().ep += (c_.software.skew_us + c_.software.exchange_us) * 1e-6 +
                          transfers_.seconds(over_ep(Collective::kAllGather, bytes));
    kernels.memory(2 * 4 * arrived_, 2);
  }
  // By copies all tokens arrive at all ranks, alongside `alongside` seconds of the router's or the weights' work, and a
  // kernel gathers the rows of the rank's experts.
  void share_tokens(double row_bytes, double alongside, Kernels& kernels) const {
    const double transfer = transfers_.seconds(over_ep(Collective::kAllGather, w_.ep * local_ * row_bytes));
    kernels.memory(2 * local_ * row_bytes);  // the rank's own tokens
    kernels.times().ep += c_.software.skew_us * 1e-6 + exposed_beside(c_, transfer, alongside);
    kernels.memory(2 * arrived_ * row_bytes);
  }
  // Messages carry only the rows that a rank's experts need.
  void send(double row_bytes, Kernels& kernels) const {
    exchange(row_bytes, kernels);
    kernels.memory(2 * arrived_ * row_bytes);
  }
  // By copies a kernel reads the rows where the experts' ranks wrote them, alongside `alongside` seconds of compute.
  void send_back(double alongside, Kernels& kernels) const {
    if (w_.ep_copies) {
      kernels.times().ep += exposed_beside(c_, exchange_seconds(row_bytes_), alongside);
      return;
    }
    kernels.memory(2 * arrived_ * row_bytes_);
    exchange(row_bytes_, kernels);
  }

  const Workload& w_;
  const MoeSpec& moe_;
  const Cluster& c_;
  const TransferTimes& transfers_;
  double local_, pairs_ = 0, arrived_ = 0, row_bytes_ = 0;
};

// The time of each step of a layer in seconds. Each call also adds to the given kernels.
class LayerSteps {
 public:
  LayerSteps(const Workload& w, const LayerSpec& layer, const Cluster& c, const TransferTimes& transfers)
      : w_(w),
        layer_(layer),
        c_(c),
        s_(w),
        attention_(attention_times(w, layer.attention, c, s_)),
        experts_(w, layer.moe, c, transfers) {}

  double run(const BlockStep& at, Kernels& kernels) const {
    if (layer_.is_local(at.branch)) {
      const PassTimes before = kernels.times();
      experts_.run(at.step, kernels);
      return kernels.times().total() - before.total();
    }
    const LinearSpec column = layer_.linear({at.branch, LinearSplit::kColumn});
    const LinearSpec row = layer_.linear({at.branch, LinearSplit::kRow});
    switch (at.step) {
      case Step::kColumnForward:
        return forward(column, kernels) + column_kernels(at.branch, Pass::kForward, kernels);
      case Step::kRowForward:
        return forward(row, kernels);
      case Step::kColumnGradient:
        return gradient(column, kernels) + column_kernels(at.branch, Pass::kBackward, kernels);
      case Step::kRowGradient:
        return gradient(row, kernels);
      case Step::kColumnWeight:
      case Step::kDeferred:  // the layer above has the same shape
        return weight_gradient(n(column), k(column), kernels);
      case Step::kRowWeight:
        return weight_gradient(n(row), k(row), kernels);
      case Step::kInnerForward:
        return layer_.visit(at.branch, [&](const auto& spec) { return inner(spec, Pass::kForward, kernels); });
      case Step::kInnerBackward:
        return layer_.visit(at.branch, [&](const auto& spec) { return inner(spec, Pass::kBackward, kernels); });
      case Step::kDefer:  // counted where it runs
      case Step::kRecompute:
      case Step::kRecomputeNorm:  // recompute() counts them
        return 0;
    }
    return 0;
  }

  // A norm with the residual addition before it reads stream and branch, and writes the stream and the rows. Without a
  // norm, the addition and a copy of the stream are two kernels.
  double norm_forward(Kernels& kernels) const {
    return has_input_norms() ? of_stream(4, kernels) : of_stream(5, kernels, 2);
  }
  // Reads the gradient of the rows, the stream and its gradient; writes the gradient of the stream. Without a norm, the
  // stream is not read.
  double norm_backward(Kernels& kernels) const {
    return has_input_norms() ? of_stream(4, kernels, 2) : of_stream(3, kernels);
  }
  // The norm of a branch's output, which is stored first. Backward reads this output and its norm's gradient.
  void output_norm_forward(Kernels& kernels) const { of_stream(4, kernels, 2); }
  void output_norm_backward(Kernels& kernels) const { of_stream(3, kernels, 2); }
  // Adds the memory traffic of a program with unfused kernels.
  void unfused(Pass which, Kernels& kernels) const {
    const double bytes = activation_bytes(w_.numbers);
    const double passes = c_.software.unfused_passes;
    if (passes > 0) kernels.memory(passes * (s_.local_rows * s_.width + s_.rows * ffn()) * bytes, 4);
    if (c_.software.separate_kernels) separate(which, bytes / 2, kernels);
    if (c_.software.eager_kernels) eager(which, bytes / 2, kernels);
  }
  // Adds what a level of recompute adds to backward, without tp's transfers.
  void recompute(Kernels& kernels) const {
    switch (w_.recompute) {
      case Recompute::kNone:
      case Recompute::kAuto:
        return;
      case Recompute::kSelective:
        if (w_.selective == SelectiveRecompute::kAttentionCore) {
          run({Branch::kAttention, Step::kInnerForward}, kernels);
          return;
        }
        elementwise(layer_.recomputed_elements(), kernels);
        if (c_.software.eager_kernels) eager(Pass::kForward, activation_bytes(w_.numbers) / 2, kernels);
        [[fallthrough]];
      case Recompute::kNorms:
        for (int rows = 0; rows < layer_.gathered_rows(); ++rows) norm_forward(kernels);
        return;
      case Recompute::kFull:
        return;  // the caller adds the whole forward pass
    }
  }

  const LayerSpec& layer() const { return layer_; }

 private:
  bool has_input_norms() const { return layer_.norm_before(Branch::kAttention) != LayerSpec::kNoNorm; }
  // Kernels that read or write the residual stream, or rows of its size, `times` times.
  double of_stream(double times, Kernels& kernels, int count = 1) const {
    return kernels.memory(times * s_.local_rows * s_.width * activation_bytes(w_.numbers), count);
  }
  double weight_gradient(double rows, double columns, Kernels& kernels) const {
    const double seconds = kernels.gemm(rows, columns, s_.rows, w_.gradient_bytes == 2 ? kWritesBf16 : kAddsFp32);
    const double bytes = c_.software.accumulate_bytes;
    return seconds + (bytes > 0 ? kernels.memory(bytes * rows * columns) : 0);
  }
  // A separate kernel for each bias, dropout, residual addition, activation and sum of gradients, as in Megatron-LM
  // before 2023. Counts bytes of bf16 beyond norm_forward and norm_backward.
  void separate(Pass which, double scale, Kernels& kernels) const {
    const double stream = num_norms() * s_.local_rows * s_.width, ffn = s_.rows * this->ffn(),
                 heads = s_.rows * heads_width();
    if (which == Pass::kForward) {
      // The sum of branch and residual is written with the dropout's mask, and the norm reads it again (11 instead of
      // 8). Then come bias and activation, and the copy of heads into rows.
      kernels.memory(scale * (3 * stream + 4 * ffn + 4 * heads), 4);
      return;
    }
    // The norm's input (6) and weights (4), the residual's sum (6), the dropout (5), the bias' sum (2): 23 instead of
    // 8. The activation (6) and its bias (2). The copies of rows into heads and of three gradients into one tensor, and
    // its bias.
    kernels.memory(scale * (15 * stream + 8 * ffn + 22 * heads), 13);
  }
  // PyTorch's modules without a compiler: one kernel per operation. Counts bytes of bf16 beyond those of fused kernels.
  // RMSNorm and rotations use fp32 copies: a conversion moves 6, an operation 8, and one on two tensors 12. A norm's
  // backward pass consists of the backward passes of its operations.
  void eager(Pass which, double scale, Kernels& kernels) const {
    const ModelConfig& m = w_.model;
    const bool rms = m.norm == Norm::kRmsNorm, swiglu = layer_.mlp.gated();
    const bool forward = which == Pass::kForward;
    const double stream = num_norms() * s_.local_rows * s_.width;
    const double ffn = s_.rows * this->ffn(), heads = s_.rows * heads_width();
    // Includes the residual's sum (6 each way); the fused kernels' bytes (8) are subtracted. RMSNorm: conversion,
    // square, mean, product, conversion, weight (36) and their gradients (68). LayerNorm: one kernel forward (4), two
    // backward (10).
    double bytes = stream * (rms ? (forward ? 34 : 66) : (forward ? 2 : 8));
    // SiLU and its product take 10 and 18 instead of 6 and 10; GeLU takes 4 and 6, while fused programs compute it in
    // GEMMs.
    bytes += ffn * (swiglu ? (forward ? 4 : 8) : (forward ? 4 : 6));
    // Queries and keys need a conversion, a product and a conversion instead of one pass in place. Keys and values are
    // copied to all heads that share them.
    bytes += 8 * s_.rows * layer_.attention.rope_elements(Pass::kForward, true) / w_.tp;
    if (layer_.attention.kv_heads < layer_.attention.heads) bytes += 4 * heads;
    if (!forward) {
      if (swiglu)
        bytes += 18 * s_.rows * s_.width;  // q, k, v, w1 and w3 are separate GEMMs, whose gradients are
                                           // summed
      if (layer_.attention.bias) bytes += 2 * s_.rows * qkv_width();
      if (m.bias) bytes += 2 * (s_.rows * 2 * s_.width + ffn);
    }
    kernels.memory(scale * bytes, forward ? 28 : 45);
  }
  // FP8 GEMMs read a quantized copy of their input; the weight gradient reads a copy of the input's transpose.
  double casts(double width, Kernels& kernels) const {
    return w_.numbers == Numbers::kFp8 ? kernels.memory(c_.software.cast_bytes * s_.rows * width) : 0;
  }
  // A kernel that reads and writes `elements` per token, divided over tp.
  double elementwise(double elements, Kernels& kernels) const {
    return elements == 0 ? 0 : kernels.memory(bytes_of(elements));
  }
  double bytes_of(double elements) const { return s_.rows * elements / w_.tp * activation_bytes(w_.numbers); }
  double column_kernels(Branch branch, Pass pass, Kernels& kernels) const {
    return elementwise(layer_.visit(branch, [&](const auto& spec) { return spec.column_elements(pass, w_.tp); }),
                       kernels);
  }
  double inner(const AttentionSpec&, Pass pass, Kernels& kernels) const {
    return pass == Pass::kForward ? kernels.attention(attention_.forward, attention_.forward_kernels)
                                  : kernels.attention(attention_.backward, attention_.backward_kernels);
  }
  template <class Spec>
  double inner(const Spec& spec, Pass pass, Kernels& kernels) const {
    const bool fp8 = w_.numbers == Numbers::kFp8;
    return elementwise(spec.inner_elements(pass, fp8), kernels) +
           kernels.epilogue(c_.software.epilogue_exposed * bytes_of(spec.epilogue_elements(pass, fp8)));
  }
  double forward(const LinearSpec& linear, Kernels& kernels) const {
    return kernels.gemm(s_.rows, n(linear), k(linear), activation_bytes(w_.numbers)) + casts(k(linear), kernels);
  }
  double gradient(const LinearSpec& linear, Kernels& kernels) const {
    return kernels.gemm(s_.rows, k(linear), n(linear), activation_bytes(w_.numbers)) + casts(n(linear), kernels);
  }
  // A rank's share of a linear's sizes. Other programs divide them even if a rank then has no whole head.
  double n(const LinearSpec& linear) const {
    return static_cast<double>(linear.n()) / (linear.split == LinearSplit::kColumn ? w_.tp : 1);
  }
  double k(const LinearSpec& linear) const {
    return static_cast<double>(linear.k()) / (linear.split == LinearSplit::kRow ? w_.tp : 1);
  }
  double num_norms() const { return static_cast<double>(layer_.norms.size()); }  // each with a residual addition
  double ffn() const {
    return layer_.visit(Branch::kMlp, [](const auto& spec) { return spec.activated_elements(); }) / w_.tp;
  }
  double heads_width() const { return static_cast<double>(layer_.attention.width()) / w_.tp; }
  double qkv_width() const { return static_cast<double>(layer_.attention.qkv_width()) / w_.tp; }

  const Workload& w_;
  const LayerSpec& layer_;
  const Cluster& c_;
  Sizes s_;
  AttentionTimes attention_;
  ExpertSteps experts_;
};

int on_node(const Workload& w, const Cluster& c) { return std::min(w.tp, c.node.ranks); }

double tp_seconds(const Workload& w, const Cluster& c, const TransferTimes& transfers, Collective kind) {
  if (w.tp == 1) return 0;
  const Sizes s(w);
  // Rows that only FP8 GEMMs read are gathered in FP8.
  const bool fp8 = w.numbers == Numbers::kFp8 && kind == Collective::kAllGather;
  const double element = fp8 ? 1 : activation_bytes(w.numbers);
  return c.software.skew_us * 1e-6 + transfers.seconds({.kind = kind,
                                                        .bytes = s.rows * s.width * element,
                                                        .ranks = w.tp,
                                                        .on_node = on_node(w, c),
                                                        .axis = TransferAxis::kTp});
}

// The sum over tp of QK-norm's sums over the full width, which attention waits for.
double qk_sum_seconds(const Workload& w, const AttentionSpec& attention, const Cluster& c,
                      const TransferTimes& transfers) {
  if (w.tp == 1 || attention.unsplit_statistics() == 0) return 0;
  return c.software.skew_us * 1e-6 + transfers.seconds({.kind = Collective::kAllReduce,
                                                        .bytes = Sizes(w).rows * attention.unsplit_statistics() * 4,
                                                        .ranks = w.tp,
                                                        .on_node = on_node(w, c),
                                                        .axis = TransferAxis::kTp});
}

// Returns the exposed time of a transfer with `alongside` seconds of compute that may hide it.
double exposed(const Workload& w, const Cluster& c, double transfer, double alongside) {
  return w.overlap_tp ? exposed_beside(c, transfer, alongside) : transfer;
}

bool is_weight_gradient(Step step) {
  return step == Step::kRowWeight || step == Step::kColumnWeight || step == Step::kDeferred;
}

// Adds one pass, region by region of the block's order. In a split backward pass weight gradients hide no transfers;
// they are added to `weight`.
void run_regions(const Workload& w, const Cluster& c, const TransferTimes& transfers, const LayerSteps& steps,
                 Pass which, Kernels& kernels, Kernels& weight) {
  Workload async = w;
  async.overlap_tp = true;
  const bool splits = splits_backward(w.schedule);
  for (const TransferRegion& region : block_order(steps.layer(), which)) {
    double alongside = 0;
    for (const BlockStep& step : region.steps) {
      if (splits && is_weight_gradient(step.step))
        steps.run(step, weight);
      else
        alongside += steps.run(step, kernels);
    }
    if (w.tp == 1 || steps.layer().is_local(region.linear.branch)) continue;
    const double transfer =
        tp_seconds(w, c, transfers, region.reduces() ? Collective::kReduceScatter : Collective::kAllGather);
    const bool is_async = w.async_sums && which == Pass::kBackward && (region.reduces() || !w.sequence_parallel);
    kernels.times().tp += exposed(is_async ? async : w, c, transfer, alongside);
  }
}

// Whether backward gathers rows again that forward gathered but did not save.
bool gathers_again(const Workload& w) {
  const bool recomputes_rows = w.recompute != Recompute::kNone && w.selective != SelectiveRecompute::kAttentionCore;
  return w.gathers_again || recomputes_rows;
}

// The time until each cp rank has the keys and values of all that it reads, or their gradients, in one of `groups`
// equal transfers.
double kv_seconds(const Workload& w, const AttentionSpec& attention, const Cluster& c, const TransferTimes& transfers,
                  int groups = 1) {
  const double element = w.gathers_kv ? activation_bytes(w.numbers) : 2;
  // Of the rank whose queries attend to most keys of the others.
  const SequenceChunks chunks{attention.seq_len, {0, w.cp}};
  const double share = w.gathers_kv ? chunks.share_of_foreign_keys(attention.window, kKeyTile) / groups : 1;
  const double bytes =
      2.0 * w.micro_batch * attention.seq_len * static_cast<double>(attention.kv_width()) / w.tp * element * share;
  const int members = std::clamp(c.node.ranks / w.tp, 1, w.cp);
  return transfers.seconds({Collective::kAllGather, bytes, w.cp, members, TransferAxis::kCp});
}

// Adds the transfers of other programs, alongside the attention that reads what they bring: `passes` gathers.
void add_context_parallel(const Workload& w, const AttentionSpec& attention, const Cluster& c,
                          const TransferTimes& transfers, double passes, PassTimes& times) {
  if (w.cp == 1 || w.gathers_kv) return;
  const double transfer = passes * kv_seconds(w, attention, c, transfers);
  times.tp += std::max(transfer / w.cp, transfer - times.attention);
}

// Adds those of this program (lib/model/kv_exchange.h), and the kernels that pack and sum the rows.
void add_kv_exchange(const Workload& w, const LayerSpec& layer, const Cluster& c, const TransferTimes& transfers,
                     const LayerSteps& steps, Kernels& forward, Kernels& backward) {
  if (w.cp == 1 || !w.gathers_kv) return;
  const int groups = kv_head_groups(layer.attention, w.tp, w.cp, c.node.ranks, w.overlap_cp);
  const double last = kv_seconds(w, layer.attention, c, transfers, groups) + c.software.skew_us * 1e-6;
  const double transfer = groups * last;
  // Attention over other groups of heads, with which the transfer of all but one group can overlap.
  const auto alongside = [&](Kernels& pass) { return pass.times().attention * (groups - 1) / groups; };
  const double local = 2 * Sizes(w).rows * static_cast<double>(layer.attention.kv_width()) / w.tp;
  const double bytes = activation_bytes(w.numbers);
  forward.memory(2 * local * bytes);
  forward.times().tp += last + std::max(0.0, transfer - last - alongside(forward));
  backward.memory((w.cp + 1) * local * bytes);
  double again = 0;
  if (w.recompute != Recompute::kFull) {  // else the repeated forward pass gathers
    Kernels unused(w, c);
    const double hides = w.overlap_cp ? steps.run({Branch::kAttention, Step::kRowGradient}, unused) : 0;
    backward.memory(2 * local * bytes);
    again = std::max(0.0, transfer - hides) + std::min(transfer, hides) * c.software.beside_slowdown;
  }
  backward.times().tp += last + std::max(0.0, again + transfer - last - alongside(backward));
}

}  // namespace

PassTimes& PassTimes::operator+=(const PassTimes& other) {
  gemm += other.gemm;
  attention += other.attention;
  memory += other.memory;
  tp += other.tp;
  ep += other.ep;
  fixed += other.fixed;
  return *this;
}

PassTimes operator*(double factor, PassTimes times) {
  times.gemm *= factor;
  times.attention *= factor;
  times.memory *= factor;
  times.tp *= factor;
  times.ep *= factor;
  times.fixed *= factor;
  return times;
}

LayerTimes layer_times(const Workload& workload, const LayerSpec& layer, const Cluster& c,
                       const TransferTimes& transfers) {
  const Workload w = workload_of_layer(workload, layer);
  const LayerSteps steps(w, layer, c, transfers);
  Kernels forward(w, c), backward(w, c), weight(w, c);
  const bool splits = splits_backward(w.schedule);
  run_regions(w, c, transfers, steps, Pass::kForward, forward, weight);
  run_regions(w, c, transfers, steps, Pass::kBackward, backward, weight);
  // The gradients of the branches' outputs are copied for the kWeight action, in the parallel block once for both.
  if (splits) {
    const Sizes sizes(w);
    const double element = layer.fp8 ? 1 : activation_bytes(w.numbers);
    const int copies = layer.has_middle() ? 2 : 1;
    backward.memory(copies * 2 * sizes.rows * sizes.width * element, copies);
  }
  for (Kernels* pass : {&forward, &backward}) pass->times().tp += qk_sum_seconds(w, layer.attention, c, transfers);
  for (int rows = 0; rows < layer.gathered_rows(); ++rows) {
    steps.norm_forward(forward);
    steps.norm_backward(backward);
  }
  for (int norm = 0; norm < layer.output_norms(); ++norm) {
    steps.output_norm_forward(forward);
    steps.output_norm_backward(backward);
  }
  steps.unfused(Pass::kForward, forward);
  steps.unfused(Pass::kBackward, backward);
  add_context_parallel(w, layer.attention, c, transfers, 1, forward.times());
  add_context_parallel(w, layer.attention, c, transfers, 2, backward.times());
  add_kv_exchange(w, layer, c, transfers, steps, forward, backward);
  steps.recompute(backward);
  for (Kernels* pass : {&forward, &backward, &weight}) pass->wait_for_host();
  LayerTimes times{forward.times(), backward.times(), weight.times()};
  constexpr double kForwardShare = 1.0 / 3;  // of a layer's kernels; of those of the backward pass, half are of weights
  const double fixed = c.software.layer_us * 1e-6;
  times.forward.fixed = kForwardShare * fixed;
  times.weight.fixed = splits ? (1 - kForwardShare) / 2 * fixed : 0;
  times.backward.fixed = (1 - kForwardShare) * fixed - times.weight.fixed;
  if (w.recompute == Recompute::kFull) {
    times.backward += times.forward;
  } else if (w.tp > 1 && gathers_again(w)) {
    // This gather overlaps backward GEMMs, in Megatron-LM too, which overlaps no other transfers.
    Workload alongside = w;
    alongside.overlap_tp = w.overlap_tp || w.gathers_again;
    const double gather = tp_seconds(w, c, transfers, Collective::kAllGather);
    const int gathers = layer.gathered_rows() - (layer.has_experts() ? 1 : 0);
    times.backward.tp += gathers * exposed(alongside, c, gather, gather);
  }
  return times;
}

LayerTimes embedding_times(const Workload& w, const Cluster& c, const TransferTimes& transfers) {
  const Sizes s(w);
  Kernels forward(w, c), backward(w, c);
  const double bytes = activation_bytes(w.numbers);
  forward.memory(2 * s.rows * s.width * bytes);
  backward.memory(s.rows * s.width * (bytes + 2 * 4));
  if (w.tp > 1) {
    forward.times().tp += tp_seconds(w, c, transfers, Collective::kReduceScatter);
    backward.times().tp += tp_seconds(w, c, transfers, Collective::kAllGather);
  }
  return {forward.times(), backward.times(), {}};
}

LayerTimes head_times(const Workload& w, const Cluster& c, const TransferTimes& transfers) {
  const Sizes s(w);
  const double vocab = static_cast<double>(padded_vocab(w.model)) / w.tp, bytes = activation_bytes(w.numbers);
  Workload plain = w;  // the head does not run in FP8
  if (w.numbers == Numbers::kFp8) plain.numbers = Numbers::kBf16;
  Kernels backward(plain, c);
  backward.memory(4 * s.local_rows * s.width * bytes, 1);
  backward.gemm(s.rows, vocab, s.width, bytes);
  backward.memory(c.software.loss_bytes * bytes / 2 * s.rows * vocab, 2);
  backward.gemm(s.rows, s.width, vocab, bytes);
  backward.gemm(vocab, s.width, s.rows, kAddsFp32);
  backward.memory(4 * s.local_rows * s.width * bytes, 2);
  if (w.tp > 1)
    backward.times().tp +=
        tp_seconds(w, c, transfers, Collective::kAllGather) + tp_seconds(w, c, transfers, Collective::kReduceScatter);
  return {{}, backward.times(), {}};
}

}  // namespace tri
