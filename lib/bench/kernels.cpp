#include "lib/bench/kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "io/base/random.h"
#include "kernels/core/arena.h"
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"
#include "kernels/ops.h"
#include "lib/bench/measure.h"
#include "lib/model/parameter.h"
#include "lib/model/stage_tensors.h"

namespace tri {
namespace {

struct KernelCase {
  std::string name, shape;
  double bytes, flops;
  std::function<void(Stream&)> run;
};

// Operands of the cases at a config's shapes. Constructed twice: on a measuring arena, then on a real one.
class Cases {
 public:
  Cases(const Config& config, Arena& arena) : c_(config), arena_(arena) {
    const ModelConfig& m = config.model;
    type_ = config.precision.compute;
    element_ = static_cast<double>(dtype_bytes(type_));
    R_ = int64_t{config.data.micro_batch} * m.seq_len;
    norms();
    fp8_casts();
    if (std::ranges::count(kActivationKernels, c_.model.activation) > 0) {
      activations();
      fp8_activations();
    }
    if (moe_.experts > 0) experts();
    embeddings();
    attention();
    cross_entropy();
    optimizers();
  }
  const std::vector<KernelCase>& cases() const { return cases_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Of those, the tensors whose values matter.
  const std::vector<std::pair<Tensor, std::vector<int32_t>>>& contents() const { return contents_; }

 private:
  Tensor take(Dtype type, std::initializer_list<int64_t> shape) {
    tensors_.push_back(arena_.take("operands", type, shape));
    return tensors_.back();
  }
  Tensor take(std::initializer_list<int64_t> shape) { return take(type_, shape); }
  // A case is a call of an op with `args`: `bytes` moved through memory, or FLOPs.
  template <class Args>
  void add(const std::string& name, const std::string& shape, double bytes, double flops,
           void (*op)(const Args&, Stream&), const std::type_identity_t<Args>& args) {
    cases_.push_back({name, shape, bytes, flops, [=](Stream& s) { op(args, s); }});
  }
  // The kernel moves `elements` of the compute dtype through memory.
  template <class Args>
  void memory_case(const std::string& name, const std::string& shape, double elements, void (*op)(const Args&, Stream&),
                   const std::type_identity_t<Args>& args, double extra_bytes = 0) {
    add(name, shape, elements * element_ + extra_bytes, 0, op, args);
  }

  void norms() {
    const int64_t C = c_.model.hidden;
    const bool layernorm = c_.model.norm == Norm::kLayerNorm, bias = layer_.norms.front().bias;
    const Tensor out = take({R_, C}), sum = take({R_, C}), inp = take({R_, C}), add = take({R_, C});
    const Tensor weight = take({C}), shift = bias ? take({C}) : Tensor{}, add_bias = bias ? take({C}) : Tensor{};
    const Tensor mean = layernorm ? take(Dtype::kF32, {R_}) : Tensor{}, rstd = take(Dtype::kF32, {R_});
    const Tensor dweight = take(Dtype::kF32, {C}), dbias = bias ? take(Dtype::kF32, {C}) : Tensor{};
    const std::string shape = fmt::format("R {} C {}", R_, C);
    const double rows = static_cast<double>(R_) * static_cast<double>(C);
    const Norm kind = c_.model.norm;
    const NormForward plain{
        .kind = kind, .out = out, .mean = mean, .rstd = rstd, .inp = inp, .weight = weight, .bias = shift};
    NormForward added = plain;
    added.sum = sum;
    added.add = add;
    added.add_bias = add_bias;
    memory_case("norm_forward", shape, 2 * rows, norm_forward, plain);
    memory_case("norm_forward, residual", shape, 4 * rows, norm_forward, added);
    const Tensor quantized = take(Dtype::kE4M3, {R_, C}), one = take(Dtype::kF32, {1}), amax = take(Dtype::kF32, {1});
    const Fp8Cast to_fp8{.out = quantized, .scale = one, .amax = amax, .counts = take(Dtype::kI64, {kNumFp8Counts})};
    const auto fp8_case = [&](const std::string& name, double elements, NormForward norm) {
      norm.out = {};
      memory_case(name, shape, elements, fp8_norm_forward, {.norm = norm, .cast = to_fp8}, rows);
    };
    fp8_case("fp8 norm_forward", rows, plain);
    fp8_case("fp8 norm_forward, residual", 3 * rows, added);
    memory_case("norm_backward", shape, 4 * rows, norm_backward,
                {.kind = kind,
                 .dinp = out,
                 .dresidual = add,
                 .dweight = dweight,
                 .dbias = dbias,
                 .dout = sum,
                 .inp = inp,
                 .weight = weight,
                 .mean = mean,
                 .rstd = rstd});
    memory_case("residual_add", shape, 3 * rows, residual_add,
                {.out = out, .inp = inp, .add = add, .add_bias = add_bias});
    memory_case("accumulate", shape, 3 * rows, accumulate, {.inout = out.flat(), .inp = inp.flat()});
    const Tensor parts = take({2, R_ * C});
    memory_case("sum_parts of 2", shape, 3 * rows, sum_parts, {.out = out.flat(), .parts = parts});
    const Tensor wide = take(Dtype::kF32, {R_, C});
    memory_case("cast to fp32", shape, rows, cast, {.out = wide.flat(), .inp = inp.flat()}, 4 * rows);
  }

  void activations() {
    const MlpSpec& mlp = layer_.mlp;
    const int64_t F = mlp.ffn_hidden, width = mlp.fc1_width();
    const Tensor pre = take({R_, width}), dpre = take({R_, width}), out = take({R_, F});
    const Tensor dbias = take(Dtype::kF32, {width});
    const auto rows = static_cast<double>(R_);
    const Activation kind = c_.model.activation;
    const std::string name(enum_name(kind)), shape = fmt::format("R {} F {}", R_, F);
    memory_case(name + " forward", shape, rows * mlp.activation_elements(Pass::kForward), activation_forward,
                {.kind = kind, .out = out, .inp = pre});
    memory_case(name + " backward", shape, rows * mlp.activation_elements(Pass::kBackward), activation_backward,
                {.kind = kind, .dinp = dpre, .dout = out, .inp = pre});
    memory_case("bias_backward", shape, rows * static_cast<double>(width), bias_backward,
                {.dbias = dbias, .dout = dpre});
  }

  void fp8_casts() {
    const int64_t F = layer_.mlp.ffn_hidden;
    const Tensor inp = take({R_, F}), scale = take(Dtype::kF32, {1}), amax = take(Dtype::kF32, {1});
    const Tensor out = take(Dtype::kE4M3, {R_, F}), out_t = take(Dtype::kE4M3, {F, R_});
    const Tensor counts = take(Dtype::kI64, {kNumFp8Counts});
    const double count = static_cast<double>(R_) * static_cast<double>(F);
    const std::string shape = fmt::format("R {} F {}", R_, F);
    const Fp8Cast rows{.out = out, .inp = inp, .scale = scale, .amax = amax, .counts = counts};
    Fp8Cast both = rows;
    both.out_t = out_t;
    memory_case("fp8_cast", shape, count, fp8_cast, rows, count);
    memory_case("fp8_cast and transpose", shape, count, fp8_cast, both, 2 * count);
    memory_case("fp8_transpose", shape, 0, fp8_transpose, {.out = out_t, .inp = out}, 2 * count);
    memory_case("fp8_amax", shape, count, fp8_amax, {.amax = amax, .inp = inp});
  }

  void fp8_activations() {
    const MlpSpec& mlp = layer_.mlp;
    const int64_t F = mlp.ffn_hidden, width = mlp.fc1_width();
    const Tensor inp = take({R_, F}), scale = take(Dtype::kF32, {1}), amax = take(Dtype::kF32, {1});
    const Tensor out = take(Dtype::kE4M3, {R_, F}), out_t = take(Dtype::kE4M3, {F, R_});
    const Tensor counts = take(Dtype::kI64, {kNumFp8Counts});
    const Fp8Cast made{.out = out, .scale = scale, .amax = amax, .counts = counts};
    Fp8Cast made_both = made;
    made_both.out_t = out_t;
    const Tensor pre = take({R_, width}), dpre = take(Dtype::kE5M2, {R_, width});
    const Tensor dpre_t = take(Dtype::kE5M2, {width, R_}), dbias = take(Dtype::kF32, {width});
    const Activation kind = c_.model.activation;
    const std::string name(enum_name(kind)), shape = fmt::format("R {} F {}", R_, F);
    const double count = static_cast<double>(R_) * static_cast<double>(F), in = static_cast<double>(width / F);
    memory_case("fp8 " + name + " forward", shape, in * count, fp8_activation_forward,
                {.kind = kind, .inp = pre, .cast = made}, count);
    memory_case("fp8 " + name + " forward and transpose", shape, in * count, fp8_activation_forward,
                {.kind = kind, .inp = pre, .cast = made_both}, 2 * count);
    Fp8Cast gradient{.out = dpre, .out_t = dpre_t, .scale = scale, .amax = amax, .counts = counts, .dbias = dbias};
    memory_case("fp8 " + name + " backward", shape, (in + 1) * count, fp8_activation_backward,
                {.kind = kind, .dout = inp, .inp = pre, .cast = gradient}, 2 * in * count);
  }

  // A microbatch through the router; later cases use the rows of each expert as the first cases sorted them.
  void experts() {
    const int64_t C = moe_.hidden, E = moe_.experts, K = moe_.per_token, P = R_ * K;
    const Tensor logits = take(Dtype::kF32, {R_, E}), dlogits = take({R_, E}), weights = take(Dtype::kF32, {R_, K});
    const Tensor chosen = take(Dtype::kI32, {R_, K}), counts = take(Dtype::kF32, {E});
    const Tensor shares = take(Dtype::kF32, {E + 1}), place = take(Dtype::kI32, {R_, K});
    const Tensor pair = take(Dtype::kI32, {P}), offsets = take(Dtype::kI32, {E + 1});
    const Tensor tokens = take({R_, C}), rows = take({P, C}), drows = take({P, C});
    const RouterRule rule = moe_.rule;
    const std::string shape = fmt::format("R {} E {} K {}", R_, E, K), wide = fmt::format("{} C {}", shape, C);
    const auto scores = 4.0 * static_cast<double>(logits.numel()), pairs = static_cast<double>(P);
    const double size = pairs * static_cast<double>(C), of_tokens = size / static_cast<double>(K);
    add("router_forward", shape, scores + 8 * pairs, 0, router_forward,
        {.experts = chosen,
         .weights = weights,
         .counts = counts,
         .share_sums = shares,
         .logits = logits,
         .rule = rule});
    memory_case("router_backward", shape, static_cast<double>(dlogits.numel()), router_backward,
                {.dlogits = dlogits,
                 .dweights = weights,
                 .logits = logits,
                 .experts = chosen,
                 .counts = counts,
                 .rule = rule,
                 .aux_scale = 1e-3f,
                 .z_scale = 1e-3f},
                scores + 8 * pairs);
    add("sort_pairs", shape, 12 * pairs, 0, sort_pairs,
        {.place = place, .pair = pair, .offsets = offsets, .experts = chosen});
    memory_case("gather_rows", wide, of_tokens + size, gather_rows,
                {.out = rows, .inp = tokens, .index = pair, .divisor = static_cast<int>(K)});
    memory_case("combine_rows", wide, of_tokens + size, combine_rows,
                {.out = tokens, .rows = rows, .place = place, .weights = weights});
    memory_case(
        "combine_backward", wide, of_tokens + 2 * size, combine_backward,
        {.drows = drows, .dweights = weights, .dout = tokens, .rows = rows, .place = place, .weights = weights});
    const int64_t F = moe_.expert_hidden;
    for (const auto& [n, k] : {std::pair{moe_.width_of(F), C}, {C, F}}) {
      const Tensor inp = take({P, k}), out = take({P, n}), weight = take({E, n, k});
      const Tensor dweight = take(Dtype::kF32, {E, n, k}), one = weight.rows(0, 1).view({n, k});
      const std::string sizes = fmt::format("E {} rows {} N {} K {}", E, P, n, k);
      const double flops = 2 * pairs * static_cast<double>(n) * static_cast<double>(k);
      const auto product = [&]<class Args>(const std::string& name, void (*op)(const Args&, Stream&),
                                           const std::type_identity_t<Args>& args) {
        add(name, sizes, 0, flops, op, args);
      };
      product("grouped_forward", grouped_forward, {.out = out, .inp = inp, .weight = weight, .offsets = offsets});
      product("gemm of one expert, forward", gemm, {.out = out, .a = inp, .b = one, .trans_b = Trans::kYes});
      product("grouped_input_gradient", grouped_input_gradient,
              {.dinp = inp, .dout = out, .weight = weight, .offsets = offsets});
      product("gemm of one expert, input gradient", gemm, {.out = inp, .a = out, .b = one});
      for (const float beta : {0.0f, 1.0f})
        product(beta == 0 ? "grouped_weight_gradient" : "grouped_weight_gradient, adding", grouped_weight_gradient,
                {.dweight = dweight, .dout = out, .inp = inp, .offsets = offsets, .beta = beta});
      if (n % kFp8Multiple != 0 || k % kFp8Multiple != 0 || P % kFp8Multiple != 0) continue;
      const Tensor rows8 = take(Dtype::kE4M3, {P, k}), weight8 = take(Dtype::kE4M3, {E, n, k});
      const Tensor dout_t = take(Dtype::kE5M2, {n, P}), inp_t = rows8.view({k, P});
      const Tensor one_expert = weight8.rows(0, 1).view({n, k}), inverse = take(Dtype::kF32, {1});
      for (const Fp8Accumulation sums : {Fp8Accumulation::kFast, Fp8Accumulation::kFp32}) {
        const std::string how = sums == Fp8Accumulation::kFast ? ", fast accumulation" : "";
        const Fp8Gemm of_one{
            .out = out, .a = rows8, .b = one_expert, .inverse_a = inverse, .inverse_b = inverse, .accumulation = sums};
        product("grouped_fp8_gemm" + how, grouped_fp8_gemm,
                {.out = out,
                 .a = rows8,
                 .b = weight8,
                 .offsets = offsets,
                 .inverse_a = inverse,
                 .inverse_b = inverse,
                 .accumulation = sums});
        product("fp8_gemm of one expert" + how, fp8_gemm, of_one);
        product("grouped_fp8_gradient" + how, grouped_fp8_gradient,
                {.dweight = dweight,
                 .dout_t = dout_t,
                 .inp_t = inp_t,
                 .offsets = offsets,
                 .inverse_a = inverse,
                 .inverse_b = inverse,
                 .beta = 0.0f,
                 .accumulation = sums});
      }
    }
  }

  void embeddings() {
    const int64_t C = c_.model.hidden, V = padded_vocab(c_.model), T = c_.model.seq_len;
    const Tensor rows = take({R_, C}), table = take({V, C}), dtable = take(Dtype::kF32, {V, C});
    const Tensor positions = take({T, C}), dpositions = take(Dtype::kF32, {T, C});
    const Tensor tokens = take(Dtype::kI32, {R_});
    const double size = static_cast<double>(R_) * static_cast<double>(C);
    const double touched = static_cast<double>(std::min(R_, V)) * static_cast<double>(C);
    const std::string shape = fmt::format("R {} C {} V {}", R_, C, V);
    memory_case("embedding_forward", shape, 2 * size, embedding_forward,
                {.out = rows, .tokens = tokens, .weight = table, .first_token = 0});
    memory_case("embedding_backward", shape, size, embedding_backward,
                {.dweight = dtable, .dout = rows, .tokens = tokens, .first_token = 0}, 8 * touched);
    memory_case("position_forward", shape, 2 * size + static_cast<double>(T * C), position_forward,
                {.inout = rows, .weight = positions, .first_row = 0});
    memory_case("position_backward", shape, size, position_backward,
                {.dweight = dpositions, .dout = rows, .first_row = 0}, 8 * static_cast<double>(T * C));
    const Tensor row_positions_out = take(Dtype::kI32, {R_}), starts = take(Dtype::kI32, {R_ / T, T});
    memory_case("row_positions", shape, 0, row_positions, {.out = row_positions_out, .document_starts = starts},
                8 * static_cast<double>(R_));
  }

  // Documents of T/2, T/4, T/8 ... tokens. Returns where that of position t starts.
  static int document_start(int t, int T) {
    int start = 0;
    for (int length = (T + 1) / 2; length > 1 && t >= start + length; length = (length + 1) / 2) start += length;
    return start;
  }
  // Returns the pairs of query and key of a sample and head.
  static double pairs_inside_documents(int T, int window) {
    double pairs = 0;
    for (int t = 0; t < T; ++t) {
      const int keys = t - document_start(t, T) + 1;
      pairs += window > 0 ? std::min(keys, window) : keys;
    }
    return pairs;
  }
  Tensor document_starts(int B, int T) {
    contents_.emplace_back(take(Dtype::kI32, {B, T}), std::vector<int32_t>());
    for (int b = 0; b < B; ++b)
      for (int t = 0; t < T; ++t) contents_.back().second.push_back(document_start(t, T));
    return contents_.back().first;
  }

  void attention() {
    const AttentionShare& a = heads_;
    const int HS = a.HS, T = layer_.attention.seq_len, B = c_.data.micro_batch, window = layer_.attention.window;
    const Tensor qkv = take({R_, a.qkv_width}), dqkv = take({R_, a.qkv_width}), out = take({R_, a.width});
    const Tensor dout = take({R_, a.width}), lse = take(Dtype::kF32, {B, a.NHl, T});
    const Tensor delta = take(Dtype::kF32, {B, a.NHl, T});
    const std::string shape = fmt::format("B {} T {} heads {}/{} HS {} W {}", B, T, a.NHl, a.NKVl, HS, window);
    // Pairs of query and key inside the band; a pair takes 4 · HS FLOPs forward and 10 · HS backward.
    const double pairs = static_cast<double>(R_) * a.NHl * layer_.attention.keys_per_query(AttentionWork::kCausal);
    const float scale = 1.0f / std::sqrt(static_cast<float>(HS));
    const auto softcap = static_cast<float>(layer_.attention.softcap);
    // The order that the model uses, and the order of its GEMMs if that differs.
    std::vector<std::pair<QkvOrder, std::string>> orders{{a.order, ""}};
    if (a.order != QkvOrder::kGrouped) orders.emplace_back(QkvOrder::kGrouped, ", grouped");
    for (const AttentionKernel kernel : {AttentionKernel::kBuiltin, AttentionKernel::kCudnn})
      for (const auto& [rows, suffix] : orders) {
        if (kernel == AttentionKernel::kCudnn && softcap > 0) continue;
        const std::string name = "attention, " + std::string(enum_name(kernel));
        const auto with_sizes = [&, &rows = rows](auto args) {
          args.out = out, args.lse = lse, args.qkv = qkv;
          args.order = rows;
          args.seq_len = T, args.num_kv_heads = a.NKVl, args.group = a.G, args.window = window;
          args.scale = scale, args.softcap = softcap;
          args.kernel = kernel;
          return args;
        };
        const AttentionForward forward = with_sizes(AttentionForward{});
        const AttentionBackward backward = with_sizes(AttentionBackward{.dqkv = dqkv, .delta = delta, .dout = dout});
        add(fmt::format("{} forward{}", name, suffix), shape, 0, 4 * pairs * HS, attention_forward, forward);
        add(fmt::format("{} backward{}", name, suffix), shape, 0, 10 * pairs * HS, attention_backward, backward);
        if (kernel != AttentionKernel::kBuiltin || !suffix.empty()) continue;
        AttentionForward forward_documents = forward;
        AttentionBackward backward_documents = backward;
        forward_documents.first_key = backward_documents.first_key = document_starts(B, T);
        const double inside = static_cast<double>(B) * a.NHl * pairs_inside_documents(T, window);
        add(name + " forward, documents", shape, 0, 4 * inside * HS, attention_forward, forward_documents);
        add(name + " backward, documents", shape, 0, 10 * inside * HS, attention_backward, backward_documents);
      }
    kv_cases(shape, qkv);
    if (HS % 2 == 0) rope_cases(shape, dqkv, qkv);
    if (HS % 2 == 0) qk_norm_cases(shape, dqkv, take({R_, a.qkv_width}), qkv);
  }

  // Adds the kernels of context parallelism over two ranks.
  void kv_cases(const std::string& shape, Tensor qkv) {
    const int64_t width = int64_t{2} * heads_.NKVl * heads_.HS;
    const Tensor kv = take({R_, width}), parts = take({2, R_, width});
    const PackKv pack{.kv = kv, .qkv = qkv, .order = heads_.order, .num_kv_heads = heads_.NKVl, .group = heads_.G};
    const UnpackKv unpack{
        .qkv = qkv, .parts = parts, .order = heads_.order, .num_kv_heads = heads_.NKVl, .group = heads_.G};
    const auto elements = static_cast<double>(kv.numel());
    memory_case("pack_kv", shape, 2 * elements, pack_kv, pack);
    memory_case("unpack_kv of 2 parts", shape, 3 * elements, unpack_kv, unpack);
  }

  // Adds cases in place and, if RoPE changes the order of heads, from one tensor to another.
  void rope_cases(const std::string& shape, Tensor out, Tensor inp) {
    AttentionSpec rotated = layer_.attention;
    rotated.rope = true;
    rotated.qk_norm = QkNorm::kNone;
    Rope in_place{.out = out, .inp = out, .num_kv_heads = heads_.NKVl, .group = heads_.G};
    in_place.table = take(Dtype::kF32, {layer_.attention.seq_len, heads_.HS / 2, 2});
    memory_case("rope", shape, static_cast<double>(R_) * rotated.rope_elements(Pass::kForward, true), rope, in_place);
    const QkvOrder order = heads_.order;
    if (order == QkvOrder::kGrouped) return;
    Rope forward = in_place, backward = in_place;
    forward.inp = backward.inp = inp;
    forward.out_order = backward.inp_order = order;
    backward.pass = Pass::kBackward;
    memory_case("rope, by kind", shape, 2 * static_cast<double>(inp.numel()), rope, forward);
    memory_case("rope backward, by kind", shape, 2 * static_cast<double>(inp.numel()), rope, backward);
  }

  // Adds norms of query and key heads with RoPE, in the order of heads that attention reads.
  void qk_norm_cases(const std::string& shape, Tensor out, Tensor gradient, Tensor inp) {
    AttentionSpec normed = layer_.attention;
    normed.qk_norm = QkNorm::kHead;
    const double rows = static_cast<double>(R_);
    const int HS = heads_.HS;
    const Tensor weight = take({HS}), dquery = take(Dtype::kF32, {HS}), dkey = take(Dtype::kF32, {HS});
    const Tensor table = take(Dtype::kF32, {layer_.attention.seq_len, HS / 2, 2});
    const QkNormRopeForward forward{.out = out,
                                    .inp = inp,
                                    .query_weight = weight,
                                    .key_weight = weight,
                                    .table = table,
                                    .num_kv_heads = heads_.NKVl,
                                    .group = heads_.G,
                                    .out_order = heads_.order};
    const QkNormRopeBackward backward{.dinp = gradient,
                                      .dquery_weight = dquery,
                                      .dkey_weight = dkey,
                                      .dout = out,
                                      .inp = inp,
                                      .query_weight = weight,
                                      .key_weight = weight,
                                      .table = table,
                                      .num_kv_heads = heads_.NKVl,
                                      .group = heads_.G,
                                      .dout_order = heads_.order};
    memory_case("qk_norm_rope_forward", shape, rows * normed.rope_elements(Pass::kForward, false), qk_norm_rope_forward,
                forward);
    memory_case("qk_norm_rope_backward", shape, rows * normed.rope_elements(Pass::kBackward, false),
                qk_norm_rope_backward, backward);
    full_qk_norm_cases(shape, forward, backward);
  }

  // Adds the two ops of each pass of a norm over all heads, with the operands of norms of single heads.
  void full_qk_norm_cases(const std::string& shape, const QkNormRopeForward& of_head,
                          const QkNormRopeBackward& of_head_backward) {
    const AttentionSpec& a = layer_.attention;
    const Tensor sums = take(Dtype::kF32, {R_, 2}), rstd = take(Dtype::kF32, {R_, 2});
    const Tensor query = take({heads_.width}), key = take({int64_t{heads_.NKVl} * heads_.HS});
    const Tensor dquery = take(Dtype::kF32, {query.numel()}), dkey = take(Dtype::kF32, {key.numel()});
    const QkNormSquares squares{.sums = sums, .inp = of_head.inp, .num_kv_heads = heads_.NKVl, .group = heads_.G};
    const auto with_operands = [&](auto args) {
      args.inp = of_head.inp, args.table = of_head.table;
      args.query_weight = query, args.key_weight = key;
      args.num_kv_heads = heads_.NKVl, args.group = heads_.G;
      return args;
    };
    const auto forward = with_operands(QkNormFullForward{.query_width = a.width(),
                                                         .key_width = a.kv_width(),
                                                         .out = of_head.out,
                                                         .rstd = rstd,
                                                         .squares = sums,
                                                         .out_order = heads_.order});
    const auto products = with_operands(QkNormProducts{.sums = sums, .dout = of_head.out, .dout_order = heads_.order});
    const auto backward = with_operands(QkNormFullBackward{.query_width = a.width(),
                                                           .key_width = a.kv_width(),
                                                           .dinp = of_head_backward.dinp,
                                                           .dquery_weight = dquery,
                                                           .dkey_weight = dkey,
                                                           .rstd = rstd,
                                                           .products = sums,
                                                           .dout = of_head.out,
                                                           .dout_order = heads_.order});
    AttentionSpec normed = a;
    normed.qk_norm = QkNorm::kFull;
    const auto rows = static_cast<double>(R_);
    cases_.push_back({"qk_norm_full forward", shape, rows * normed.rope_elements(Pass::kForward, false) * element_, 0,
                      [=](Stream& s) {
                        qk_norm_squares(squares, s);
                        qk_norm_full_forward(forward, s);
                      }});
    cases_.push_back({"qk_norm_full backward", shape, rows * normed.rope_elements(Pass::kBackward, false) * element_, 0,
                      [=](Stream& s) {
                        qk_norm_products(products, s);
                        qk_norm_full_backward(backward, s);
                      }});
  }

  void cross_entropy() {
    const int64_t V = padded_vocab(c_.model);
    const int vocab = c_.model.vocab;
    const Tensor logits = take({R_, V}), stats = take(Dtype::kF32, {1, R_, 3}), loss = take(Dtype::kF32, {1});
    const Tensor targets = take(Dtype::kI32, {R_});
    const auto softcap = static_cast<float>(c_.model.logit_softcap);
    const double size = static_cast<double>(R_) * static_cast<double>(V);
    const std::string shape = fmt::format("R {} V {}", R_, V);
    const CrossEntropyLoss full{
        .loss = loss, .logits = logits, .targets = targets, .vocab = vocab, .grad_scale = 0.1f, .softcap = softcap};
    CrossEntropyLoss split = full;
    split.stats = stats;
    memory_case("cross_entropy, full", shape, 2 * size, cross_entropy_loss, full);
    memory_case(
        "cross_entropy, stats", shape, size, cross_entropy_stats,
        {.stats = stats.view({stats[1], 3}), .logits = logits, .targets = targets, .vocab = vocab, .softcap = softcap});
    memory_case("cross_entropy, split", shape, 2 * size, cross_entropy_loss, split);
  }

  void optimizers() {
    // The size of a layer's matrices or of the embedding table, whichever is larger.
    const int64_t table = padded_vocab(c_.model) * c_.model.hidden;
    const int64_t matrices = std::max(static_cast<int64_t>(layer_.weights()), table);
    const int64_t n = round_up(std::min(matrices, int64_t{1} << 28), kBlock);
    const bool mixed = type_ != Dtype::kF32;
    const auto floats = [&] { return take(Dtype::kF32, {n}); };
    Moments moments{.master = floats(), .exp_avg = floats(), .exp_avg_sq = floats(), .grad = floats()};
    moments.grad_scale = take(Dtype::kF32, {1});
    moments.block_tensor = take(Dtype::kI32, {n / kBlock});
    moments.decay = take(Dtype::kF32, {1});
    const Tensor param = mixed ? take({n}) : Tensor{}, sumsq = take(Dtype::kF32, {1}), other = take(Dtype::kF32, {1});
    const double size = static_cast<double>(n), param_bytes = mixed ? element_ * size : 0;
    const std::string shape = fmt::format("n {}", n);
    Moments rounded = moments;
    rounded.exp_avg = take(Dtype::kBF16, {n});
    rounded.exp_avg_sq = take(Dtype::kBF16, {n});
    rounded.rounding.draws = take(Dtype::kI32, {1, TensorDraws::kColumns});
    const Fp8SliceWeights quantized{.out = take(Dtype::kE4M3, {n}),
                                    .slot = take(Dtype::kI32, {1}),
                                    .scale = take(Dtype::kF32, {1}),
                                    .amax = take(Dtype::kF32, {1}),
                                    .counts = take(Dtype::kI64, {1, kNumFp8Counts})};
    for (const auto& [name, kept, bytes] :
         {std::tuple("", moments, 28 * size), std::tuple(", bf16 moments", rounded, 20 * size)}) {
      add("adamw_update" + std::string(name), shape, bytes + param_bytes, 0, adamw_update,
          {.moments = kept, .param = param, .lr = 1e-6f});
      add("adamw_update, FP8 weights" + std::string(name), shape, bytes + size, 0, adamw_update,
          {.moments = kept, .quantized = quantized, .lr = 1e-6f});
      add("lamb_direction" + std::string(name), shape, bytes, 0, lamb_direction, {.moments = kept});
    }
    add("lamb_apply", shape, 12 * size + param_bytes, 0, lamb_apply,
        {.master = moments.master,
         .param = param,
         .direction = moments.grad,
         .weight_sumsq = sumsq,
         .direction_sumsq = other,
         .grad_scale = moments.grad_scale,
         .block_tensor = moments.block_tensor,
         .decay = moments.decay,
         .lr = 1e-6f});
    add("average_weights", shape, 12 * size, 0, average_weights,
        {.ema = moments.exp_avg, .master = moments.master, .grad_scale = moments.grad_scale, .decay = 0.999f});
    muon(moments, shape);
    add("tensor_sumsq", shape, 4 * size, 0, tensor_sumsq,
        {.sumsq = sumsq, .inp = moments.grad, .block_tensor = moments.block_tensor});
  }

  // The ops of Muon on the same slice, and the iteration's GEMMs for each logical matrix of a layer.
  void muon(const Moments& moments, const std::string& slice) {
    const int64_t n = moments.master.numel();
    const double size = static_cast<double>(n);
    const MatrixRuns runs{.run = n, .stride = n};
    const Tensor packed = take({n}), sumsq = take(Dtype::kF32, {1});
    add("momentum_update", slice, 16 * size, 0, momentum_update,
        {.momentum = moments.exp_avg,
         .grad = moments.grad,
         .grad_scale = moments.grad_scale,
         .block_tensor = moments.block_tensor});
    add("pack_matrix", slice, (4 + element_) * size, 0, pack_matrix,
        {.out = packed, .inp = moments.grad, .runs = runs});
    add("unpack_matrix", slice, (8 + element_) * size, 0, unpack_matrix,
        {.out = moments.grad, .inp = packed, .master = moments.master, .runs = runs});
    add("matrix_sumsq", slice, element_ * size, 0, matrix_sumsq, {.sumsq = sumsq, .inp = packed});
    std::vector<MatrixShape> shapes;
    for (const LinearSpec& linear : layer_.linears())
      for (const MatrixShape& matrix : linear.matrices())
        if (std::ranges::find(shapes, matrix) == shapes.end()) shapes.push_back(matrix);
    for (const auto& [rows, columns] : shapes) {
      const bool tall = rows > columns;
      const int64_t side = std::min(rows, columns);
      const double length = static_cast<double>(std::max(rows, columns)), small = static_cast<double>(side);
      const Tensor x = take({rows, columns}), next = take({rows, columns}), gram = take({side, side}),
                   powers = take({side, side});
      const std::string shape = fmt::format("{} x {}", rows, columns);
      const Trans first = tall ? Trans::kYes : Trans::kNo, second = tall ? Trans::kNo : Trans::kYes;
      add("muon: X X^T", shape, 0, 2 * small * small * length, gemm,
          {.out = gram, .a = x, .b = x, .trans_a = first, .trans_b = second});
      add("muon: c A A + b A", shape, 0, 2 * small * small * small, gemm,
          {.out = powers, .a = gram, .b = gram, .alpha = 1e-3f, .beta = 0.5f, .addend = gram});
      add("muon: X X^T, one triangle", shape, 0, small * (small + 1) * length, symmetric_product,
          {.out = gram, .a = x, .trans_a = first});
      add("muon: c A A + b A, one triangle", shape, 0, small * (small + 1) * small, symmetric_product,
          {.out = powers, .a = gram, .alpha = 1e-3f, .beta = 0.5f, .addend = gram});
      const Gemm right{.out = next, .a = x, .b = powers, .trans_b = Trans::kYes, .beta = 0.5f, .addend = x},
          left{.out = next, .a = powers, .b = x, .beta = 0.5f, .addend = x};
      add("muon: P X + a X", shape, 0, 2 * small * small * length, gemm, tall ? right : left);
      memory_case("scale_matrix", shape, 2 * small * length, scale_matrix, {.out = next, .inp = x, .sumsq = sumsq});
    }
  }

  const Config& c_;
  Arena& arena_;
  const LayerSpec layer_ = layers_of_model(c_)[0];
  const MoeSpec moe_ = layers_of_model(c_)[c_.model.layers - 1].moe;
  const AttentionShare heads_ = share_of(layer_.attention, 1);
  Dtype type_;
  double element_;
  int64_t R_;
  std::vector<KernelCase> cases_;
  std::vector<Tensor> tensors_;
  std::vector<std::pair<Tensor, std::vector<int32_t>>> contents_;
};

// Fills with random numbers or tokens; owner tables (i32 of other sizes) and counters (i64) become zero.
void fill(const Tensor& tensor, int64_t rows, int vocab, Stream& stream) {
  if (tensor.dtype == Dtype::kI64) return stream.zero(tensor);
  if (tensor.dtype != Dtype::kI32) return fill_random(tensor, stream);
  std::vector<int32_t> host(static_cast<size_t>(tensor.numel()), 0);
  for (size_t i = 0; i < host.size() && tensor.numel() == rows; ++i)
    host[i] = static_cast<int32_t>(random_u64(7, i) % static_cast<uint64_t>(vocab));
  stream.copy(tensor.data, host.data(), tensor.bytes());
  stream.synchronize();
}

}  // namespace

KernelBenchResult bench_kernels(const Config& config, Device& device, const KernelBench& bench) {
  Arena measuring;
  Cases(config, measuring);
  const int64_t copy_bytes = device.kind() == DeviceKind::kCuda ? int64_t{1} << 30 : int64_t{1} << 27;
  KernelBenchResult result;
  result.copy_bytes_per_s = device_copy_rate(device, copy_bytes, bench.rounds);
  Arena arena(device, measuring.used());
  const Cases cases(config, arena);
  const auto stream = device.make_stream("bench");
  const int64_t rows = int64_t{config.data.micro_batch} * config.model.seq_len;

  const auto peak = device.peak_tflops(config.precision.compute);
  for (const Tensor& tensor : cases.tensors()) fill(tensor, rows, config.model.vocab, *stream);
  for (const auto& [tensor, values] : cases.contents()) stream->copy(tensor.data, values.data(), tensor.bytes());
  for (const KernelCase& c : cases.cases()) {
    KernelRow row{.name = c.name, .shape = c.shape, .bytes = c.bytes, .flops = c.flops};
    try {
      row.microseconds = 1e6 * median_seconds([&] { c.run(*stream); }, bench.rounds, device, *stream);
    } catch (const Fatal&) {  // a library's kernel does not support this shape or build
      continue;
    }
    if (c.bytes > 0) row.floor_microseconds = 1e6 * c.bytes / result.copy_bytes_per_s;
    if (c.flops > 0 && peak) row.floor_microseconds = c.flops / *peak * 1e-6;
    result.rows.push_back(row);
  }
  return result;
}

}  // namespace tri
