// CUDA's AdamW, LAMB, average of the weights and sums of squares against the CPU reference.
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"
#include "tests/cuda/op_compare.h"

namespace tri::test {
namespace {

constexpr int64_t kTensors = 4;
constexpr int64_t kSlices[] = {1, 5, 700};  // blocks

Buffer one_a_tensor(const Values& values) { return Buffer(Dtype::kF32, {kTensors}, values); }

// A slice with some blocks of four tensors, followed by padding where it fits.
struct Slice {
  explicit Slice(int64_t blocks) : n(blocks * kBlock), block_tensor(Dtype::kI32, {blocks}, owners(blocks)) {}

  static Values owners(int64_t blocks) {
    Values owners;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t tensor = b * kTensors / blocks;
      const bool padding = blocks > kTensors && (b + 1) * kTensors / blocks != tensor;
      owners.push_back(padding ? -1 : static_cast<double>(tensor));
    }
    return owners;
  }
  Buffer floats(const char* name) const { return Buffer(Dtype::kF32, {n}, random_values(n, name)); }
  Operands moments(Dtype kept, double grad_scale = 0.5) const {
    Values squares = random_values(n, "exp_avg_sq");
    for (double& v : squares) v = v * v;
    return {{"master", floats("master")},
            {"exp_avg", Buffer(kept, {n}, random_values(n, "exp_avg"))},
            {"exp_avg_sq", Buffer(kept, {n}, squares)},
            {"grad", floats("grad")},
            {"grad_scale", Buffer(Dtype::kF32, {1}, {grad_scale})},
            {"block_tensor", block_tensor},
            {"decay", decay},
            {"draws", draws}};
  }
  Operands adamw(Dtype kept, const Buffer& param, double grad_scale = 0.5) const {
    Operands operands = moments(kept, grad_scale);
    operands.emplace_back("param", param);
    return operands;
  }
  // The bf16 copy of the weights to write, poisoned; or an absent operand.
  Buffer param(Dtype dtype) const { return dtype == Dtype::kBF16 ? Buffer(dtype, {n}) : Buffer(); }

  int64_t n;
  Buffer block_tensor;
  Buffer decay = one_a_tensor({0.1, -1, 0, 0.2});
  // A whole tensor, two shares of columns, another whole one.
  Buffer draws{
      Dtype::kI32, {kTensors, TensorDraws::kColumns}, {1, 2, 0, 0,  0,  0,  0, 0, 3,  4,  2, 5, 15, 10, 0, 0,  //
                                                       5, 6, 1, 32, 64, 32, 0, 0, -7, -8, 3, 0, 0,  0,  0, 0}};
};

Moments moments_on(const Place& on) {
  const Moments numbers{.beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-6f,
                        .bias_correction1 = 0.3f,
                        .bias_correction2 = 0.2f,
                        .rounding = {.draws = on("draws"), .first_block = 70, .step_key = 0x123456789ABCDEF}};
  return TRI_MAKE(numbers, master, exp_avg, exp_avg_sq, grad, grad_scale, block_tensor, decay)(on);
}
AdamwUpdate adamw_on(const Place& on) { return {.moments = moments_on(on), .param = on("param"), .lr = 0.01f}; }
LambDirection lamb_direction_on(const Place& on) { return {.moments = moments_on(on)}; }

// Both draw the same random numbers. An fp32 number that differs in its last bits rounds differently once in 10^4
// times; with other draws a third of the moments would.
Comparisons compared(Dtype kept, std::map<std::string, Comparison> others = {}) {
  if (kept == Dtype::kBF16) others["exp_avg"] = others["exp_avg_sq"] = draws(1e-6);
  return Comparisons(elements(2e-5), others);
}

TEST(CudaOptimizers, updates_of_moments) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : kSlices)
    for (const Dtype kept : kTypes) {
      const Slice slice(blocks);
      for (const Dtype type : kTypes)
        TRI_COMPARE(adamw_update, "adamw", slice.adamw(kept, slice.param(type)), adamw_on,
                    compared(kept, {{"param", rounding_of(type)}}));
      TRI_COMPARE(lamb_direction, "lamb", slice.moments(kept), lamb_direction_on, compared(kept));
    }
}

TEST(CudaOptimizers, an_update_alongside_other_kernels_makes_the_same_bits) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : kSlices)
    for (const Dtype kept : kTypes) {
      const Slice slice(blocks);
      const auto updated = [&](bool alongside) {
        const Operands operands = slice.adamw(kept, slice.param(Dtype::kBF16));
        std::vector<std::unique_ptr<DeviceBuffer>> memory;
        Place place;
        for (const auto& [name, buffer] : operands) {
          memory.push_back(std::make_unique<DeviceBuffer>(buffer));
          place.add(name, *memory.back());
        }
        AdamwUpdate args = adamw_on(place);
        args.alongside = alongside;
        cuda::adamw_update(args, test_stream());
        std::vector<Values> values;
        for (size_t i = 0; i < operands.size(); ++i) values.push_back(memory[i]->values(operands[i].second));
        return values;
      };
      const std::vector<Values> expected = updated(false), found = updated(true);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(difference(found[i], expected[i], same_bits), "")
            << "operand " << i << ", " << blocks << " blocks, moments " << enum_name(kept);
    }
}

TEST(CudaOptimizers, gradients_that_are_not_finite_change_nothing) {
  TRI_NEEDS_GPU();
  const Slice slice(kSlices[1]);
  for (const Dtype kept : kTypes) {
    const Operands before = slice.adamw(kept, slice.param(Dtype::kBF16), NAN);
    for (const Operands& after : {TRI_COMPARE(adamw_update, "adamw", before, adamw_on, same_bits),
                                  TRI_COMPARE(lamb_direction, "lamb", before, lamb_direction_on, same_bits)})
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(after[i].second.same_bits(before[i].second)) << before[i].first;
  }
}

// An update that writes quantized values changes the weights like one that does not, bit for bit. Its quantized values,
// amax and counts are those of fp8_cast_slice applied to the resulting weights, also if nothing changes.
TEST(CudaOptimizers, quantized_weights_are_those_of_the_master) {
  TRI_NEEDS_GPU();
  constexpr int64_t kSlots = 6;
  for (const int64_t blocks : {int64_t{1}, int64_t{5}, int64_t{48}, int64_t{700}})
    for (const Dtype kept : kTypes)
      for (const double grad_scale : {0.5, static_cast<double>(NAN)})
        for (const bool lamb : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} blocks, moments {}, factor {}, lamb {}", blocks, enum_name(kept), grad_scale, lamb));
          const Slice slice(blocks);
          const Buffer slot(Dtype::kI32, {kTensors}, {4, 0, 5, 2});
          const Buffer scale(Dtype::kF32, {kSlots}, {64, NAN, 0x1p-8, NAN, 512, 0});
          const Buffer out(Dtype::kE4M3, {slice.n}), amax(Dtype::kF32, {kSlots}, Values(kSlots, 0));
          const Buffer counts(Dtype::kI64, {kSlots, kNumFp8Counts}, Values(kSlots * kNumFp8Counts, 0));
          const DeviceBuffer d_slot(slot), d_scale(scale);
          struct Quantized {
            DeviceBuffer out, amax, counts;
          };
          Quantized cast{DeviceBuffer(out), DeviceBuffer(amax), DeviceBuffer(counts)},
              updated{DeviceBuffer(out), DeviceBuffer(amax), DeviceBuffer(counts)};
          const auto quantized_in = [&](const Quantized& to) {
            return Fp8SliceWeights{
                .out = to.out, .slot = d_slot, .scale = d_scale, .amax = to.amax, .counts = to.counts};
          };
          // Returns its master weights after the update.
          const auto update = [&](const Fp8SliceWeights& quantized, bool casts) {
            Operands operands = slice.moments(kept, grad_scale);
            operands.emplace_back("weight_sumsq", one_a_tensor({4, 9, 1, 0}));
            operands.emplace_back("direction_sumsq", one_a_tensor({1, 2, 0.5, 3}));
            std::vector<std::unique_ptr<DeviceBuffer>> buffers;
            Place on;
            for (const auto& [name, buffer] : operands) {
              buffers.push_back(std::make_unique<DeviceBuffer>(buffer));
              on.add(name, *buffers.back());
            }
            if (lamb)
              cuda::lamb_apply({.master = on("master"),
                                .quantized = quantized,
                                .direction = on("grad"),
                                .weight_sumsq = on("weight_sumsq"),
                                .direction_sumsq = on("direction_sumsq"),
                                .grad_scale = on("grad_scale"),
                                .block_tensor = on("block_tensor"),
                                .decay = on("decay"),
                                .lr = 0.01f},
                               test_stream());
            else
              cuda::adamw_update({.moments = moments_on(on), .quantized = quantized, .lr = 0.01f}, test_stream());
            if (casts)
              cuda::fp8_cast_slice(
                  {.quantized = quantized_in(cast), .inp = on("master"), .block_tensor = on("block_tensor")},
                  test_stream());
            return buffers.front()->values(slice.floats("master"));
          };
          const Values with = update(quantized_in(updated), true), without = update({}, false);
          EXPECT_EQ(difference(with, without, same_bits), "");
          EXPECT_EQ(difference(updated.out.values(out), cast.out.values(out), same_bits), "");
          EXPECT_EQ(difference(updated.amax.values(amax), cast.amax.values(amax), same_bits), "");
          EXPECT_EQ(difference(updated.counts.values(counts), cast.counts.values(counts), same_bits), "");
        }
}

TEST(CudaOptimizers, lamb_apply) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : kSlices)
    for (const Dtype type : kTypes) {
      const Slice slice(blocks);
      TRI_COMPARE(lamb_apply, "lamb",
                  (Operands{{"master", slice.floats("master")},
                            {"param", slice.param(type)},
                            {"direction", slice.floats("direction")},
                            {"weight_sumsq", one_a_tensor({4, 9, 1, 0})},
                            {"direction_sumsq", one_a_tensor({1, 2, 0.5, 3})},
                            {"grad_scale", Buffer(Dtype::kF32, {1}, {0.5})},
                            {"block_tensor", slice.block_tensor},
                            {"decay", slice.decay}}),
                  TRI_MAKE((LambApply{.lr = 0.01f}), master, param, direction, weight_sumsq, direction_sumsq,
                           grad_scale, block_tensor, decay),
                  Comparisons(elements(2e-5), {{"param", rounding_of(type)}}));
    }
}

TEST(CudaOptimizers, average_weights) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : kSlices)
    for (const double grad_scale : {0.5, static_cast<double>(NAN)}) {
      const Slice slice(blocks);
      const Operands before{{"ema", slice.floats("ema")},
                            {"master", slice.floats("master")},
                            {"grad_scale", Buffer(Dtype::kF32, {1}, {grad_scale})}};
      const Operands after =
          TRI_COMPARE(average_weights, fmt::format("average {}", grad_scale), before,
                      TRI_MAKE((AverageWeights{.decay = 0.9f}), ema, master, grad_scale), elements(1e-6));
      EXPECT_EQ(after[0].second.same_bits(before[0].second), std::isnan(grad_scale));
    }
}

TEST(CudaOptimizers, sums) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : kSlices) {
    const Slice slice(blocks);
    TRI_COMPARE(
        tensor_sumsq, "sumsq",
        (Operands{
            {"sumsq", one_a_tensor({1, 2, 3, 4})}, {"inp", slice.floats("inp")}, {"block_tensor", slice.block_tensor}}),
        TRI_MAKE(TensorSumsq{}, sumsq, inp, block_tensor), elements(2e-6));
    TRI_COMPARE(weighted_sum, "weighted sum",
                (Operands{{"out", Buffer(Dtype::kF32, {1}, {3.0})},
                          {"inp", slice.floats("inp")},
                          {"weight", slice.floats("weight")}}),
                TRI_MAKE(WeightedSum{}, out, inp, weight), elements(2e-5));
  }
}

TEST(CudaOptimizers, clip_scale) {
  TRI_NEEDS_GPU();
  for (const double norm_sq : {0.0, 0.25, 4.0, static_cast<double>(NAN)})
    for (const float most : {0.0f, 1.0f})
      TRI_COMPARE(clip_scale, fmt::format("clip {} {}", norm_sq, most),
                  (Operands{{"scale", Buffer(Dtype::kF32, {1})},
                            {"norm", Buffer(Dtype::kF32, {1})},
                            {"norm_sq", Buffer(Dtype::kF32, {1}, {norm_sq})}}),
                  TRI_MAKE((ClipScale{.max_norm = most}), scale, norm, norm_sq), elements(1e-6));
  for (const float norm_limit : {1.9f, 2.0f})
    for (const float loss_limit : {2.9f, 3.0f})
      TRI_COMPARE(clip_scale, fmt::format("limits {} {}", norm_limit, loss_limit),
                  (Operands{{"scale", Buffer(Dtype::kF32, {1})},
                            {"norm", Buffer(Dtype::kF32, {1})},
                            {"norm_sq", Buffer(Dtype::kF32, {1}, {4.0})},
                            {"loss", Buffer(Dtype::kF32, {1}, {3.0})}}),
                  TRI_MAKE((ClipScale{.max_norm = 1, .norm_limit = norm_limit, .loss_limit = loss_limit}), scale, norm,
                           norm_sq, loss),
                  elements(1e-6));
}

}  // namespace
}  // namespace tri::test
