// The CUDA ops of a mixture of experts against their CPU references: routers, rows sorted by expert, and GEMMs of
// experts, in Hopper's kernel and in the one for other GPUs.
#include <numeric>

#include "kernels/attention.h"
#include "kernels/core/dims.h"
#include "tests/cuda/op_compare.h"

namespace tri::test {
namespace {

struct RouterCase {
  int64_t rows, experts, per_token;
  RouterRule rule;
  bool bias = false;
};

const RouterCase kRouters[] = {
    {1, 1, 1, {}},
    {5, 4, 2, {}},
    {300, 128, 8, {}},
    {100, 33, 5, {.renormalize = false, .scale = 2.5f}},
    {9, 512, 32, {}},
    {70, 60, 4, {.kind = Router::kSigmoid, .renormalize = false}},
    {200, 256, 8, {.kind = Router::kSigmoid, .scale = 2.5f, .groups = 8, .top_groups = 4}, true},
    {33, 48, 6, {.kind = Router::kSigmoid, .groups = 48, .top_groups = 7}, true},
    {5000, 8, 2, {}}};

void compare_router(const RouterCase& c, const Values& logits) {
  const auto [rows, experts, per_token, rule, biased] = c;
  const std::string what =
      fmt::format("{} R {} E {} K {} groups {}", enum_name(rule.kind), rows, experts, per_token, rule.groups);
  const Buffer per_pair(Dtype::kF32, {rows, per_token}), inp(Dtype::kF32, {rows, experts}, logits);
  const auto routed = TRI_COMPARE(
      router_forward, what,
      (Operands{{"experts", Buffer(Dtype::kI32, {rows, per_token})},
                {"weights", per_pair},
                {"counts", Buffer(Dtype::kF32, {experts})},
                {"share_sums", Buffer(Dtype::kF32, {experts + 1})},
                {"logits", inp},
                {"bias", c.bias ? Buffer(Dtype::kF32, {experts}, random_values(experts, "bias", 0.1)) : Buffer()}}),
      TRI_MAKE((RouterForward{.rule = c.rule}), experts, weights, counts, share_sums, logits, bias),
      Comparisons(elements(2e-5), {{"experts", same_bits}, {"counts", same_bits}}));
  const Buffer dweights(Dtype::kF32, {rows, per_token}, random_values(rows * per_token, "dweights"));
  for (const float losses : {0.0f, 0.5f})
    for (const Dtype dtype : kTypes)
      TRI_COMPARE(router_backward, fmt::format("{} losses {}", what, losses),
                  (Operands{{"dlogits", Buffer(dtype, {rows, experts})},
                            {"dweights", dweights},
                            {"logits", inp},
                            {"experts", routed[0].second},
                            {"counts", losses > 0 ? routed[2].second : Buffer()}}),
                  TRI_MAKE((RouterBackward{
                               .rule = c.rule, .aux_scale = losses / static_cast<float>(c.rows), .z_scale = losses}),
                           dlogits, dweights, logits, experts, counts),
                  rounding_of(dtype, 5e-5));
}

TEST(CudaExperts, routers_match_cpu) {
  TRI_NEEDS_GPU();
  for (const RouterCase& c : kRouters) compare_router(c, random_values(c.rows * c.experts, "logits", 2.0));
}

TEST(CudaExperts, of_equal_scores_the_lower_index_comes_first) {
  TRI_NEEDS_GPU();
  for (const RouterCase& c : kRouters) {
    compare_router(c, random_integers(c.rows * c.experts, 3, "logits"));
    compare_router(c, Values(static_cast<size_t>(c.rows * c.experts), 0.0));
  }
}

TEST(CudaExperts, totals_and_biases_match_cpu) {
  TRI_NEEDS_GPU();
  for (const int64_t experts : {1, 8, 300}) {
    const auto vector = [&](const char* name) {
      return Buffer(Dtype::kF32, {experts}, random_integers(experts, 9, name));
    };
    TRI_COMPARE(
        router_totals, fmt::format("E {}", experts),
        (Operands{{"load", vector("load")},
                  {"losses", Buffer(Dtype::kF32, {2}, {1, 2})},
                  {"counts", vector("counts")},
                  {"all_counts", vector("all_counts")},
                  {"share_sums", Buffer(Dtype::kF32, {experts + 1}, random_values(experts + 1, "sums"))}}),
        TRI_MAKE((RouterTotals{.aux_scale = 0.01f, .z_scale = 0.1f}), load, losses, counts, all_counts, share_sums),
        elements(1e-6));
    for (const double grad_scale : {1.0, std::nan("")})
      TRI_COMPARE(router_bias_update, fmt::format("E {} grad_scale {}", experts, grad_scale),
                  (Operands{{"bias", Buffer(Dtype::kF32, {experts}, random_values(experts, "bias"))},
                            {"load", vector("load")},
                            {"grad_scale", Buffer(Dtype::kF32, {1}, {grad_scale})}}),
                  TRI_MAKE((RouterBiasUpdate{.rate = 1e-3f}), bias, load, grad_scale), same_bits);
  }
}

// experts 0: all pairs on the last of 4 experts.
void compare_sort(int64_t rows, int64_t per_token, int64_t experts) {
  const int64_t pairs = rows * per_token, num_experts = experts == 0 ? 4 : experts;
  const Values chosen =
      experts == 0 ? Values(static_cast<size_t>(pairs), 3.0) : random_integers(pairs, num_experts, "experts");
  TRI_COMPARE(sort_pairs, fmt::format("R {} K {} E {}", rows, per_token, experts),
              (Operands{{"place", Buffer(Dtype::kI32, {rows, per_token})},
                        {"pair", Buffer(Dtype::kI32, {pairs})},
                        {"offsets", Buffer(Dtype::kI32, {num_experts + 1})},
                        {"experts", Buffer(Dtype::kI32, {rows, per_token}, chosen)}}),
              TRI_MAKE(SortPairs{}, place, pair, offsets, experts), same_bits);
}

TEST(CudaExperts, sort_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const int64_t experts : {0, 1, 8, 128, 512})
    for (const auto& [rows, per_token] : {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {255, 1}, {4096, 8}, {40001, 4}})
      compare_sort(rows, per_token, experts);
}

TEST(CudaExperts, merge_matches_cpu) {
  TRI_NEEDS_GPU();
  for (const auto& [sources, experts] : {std::pair<int64_t, int64_t>{1, 1}, {2, 64}, {8, 16}, {64, 40}}) {
    Values counts = random_integers(sources * experts, 90, "counts");
    counts.front() = 0;
    const auto rows = static_cast<int64_t>(std::accumulate(counts.begin(), counts.end(), 0.0)) + 5;
    const Buffer kept(Dtype::kI32, {rows}, Values(static_cast<size_t>(rows), 7.0));
    TRI_COMPARE(merge_sources, fmt::format("{} sources, E {}", sources, experts),
                (Operands{{"place", kept},
                          {"pair", kept},
                          {"offsets", Buffer(Dtype::kI32, {experts + 1})},
                          {"counts", Buffer(Dtype::kI32, {sources, experts}, counts)}}),
                TRI_MAKE(MergeSources{}, place, pair, offsets, counts), same_bits);
  }
}

void compare_rows(Dtype dtype, int64_t rows, int64_t per_token, int64_t width) {
  const std::string what = fmt::format("{} R {} K {} C {}", enum_name(dtype), rows, per_token, width);
  const int64_t pairs = rows * per_token;
  const Buffer chosen(Dtype::kI32, {rows, per_token}, random_integers(pairs, 5, "experts"));
  const Buffer place(Dtype::kI32, {rows, per_token}), pair(Dtype::kI32, {pairs}), offsets(Dtype::kI32, {6});
  cpu::sort_pairs({.place = place, .pair = pair, .offsets = offsets, .experts = chosen});
  const auto matrix = [&](int64_t count, const char* name) {
    return Buffer(dtype, {count, width}, random_values(count * width, name));
  };
  const Buffer weights(Dtype::kF32, {rows, per_token}, random_values(pairs, "weights")), absent;
  TRI_COMPARE(gather_rows, what,
              (Operands{{"out", Buffer(dtype, {pairs, width})}, {"inp", matrix(rows, "inp")}, {"index", pair}}),
              TRI_MAKE((GatherRows{.divisor = static_cast<int>(per_token)}), out, inp, index), same_bits);
  for (const bool rich : {false, true})
    TRI_COMPARE(combine_rows, fmt::format("{} weights and addend {}", what, rich),
                (Operands{{"out", Buffer(dtype, {rows, width})},
                          {"rows", matrix(pairs, "rows")},
                          {"place", place},
                          {"weights", rich ? weights : absent},
                          {"addend", rich ? matrix(rows, "addend") : absent}}),
                TRI_MAKE(CombineRows{}, out, rows, place, weights, addend), rounding_of(dtype));
  for (const bool in_place : {false, true})
    TRI_COMPARE(combine_backward, fmt::format("{} in place {}", what, in_place),
                (Operands{{"drows", in_place ? absent : Buffer(dtype, {pairs, width})},
                          {"dweights", Buffer(Dtype::kF32, {rows, per_token})},
                          {"dout", matrix(rows, "dout")},
                          {"rows", matrix(pairs, "rows")},
                          {"place", place},
                          {"weights", weights}}),
                ([&](const Place& on) {
                  return CombineBackward{.drows = on(in_place ? "rows" : "drows"),
                                         .dweights = on("dweights"),
                                         .dout = on("dout"),
                                         .rows = on("rows"),
                                         .place = on("place"),
                                         .weights = on("weights")};
                }),
                Comparisons(rounding_of(dtype), {{"dweights", elements(1e-4)}}));
}

TEST(CudaExperts, rows_match_cpu) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [rows, per_token, width] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {5, 2, 7}, {300, 8, 256}, {33, 6, 2048}, {64, 5, 100}})
      compare_rows(dtype, rows, per_token, width);
}

// Streams on which each kind of grouped GEMM runs: those that the GPU selects and, on Hopper, also those of other GPUs.
std::vector<CudaStream*> grouped_streams() {
  const GpuProperties gpu = cuda::gpu_properties(0);
  if (!flash_attention_is_hoppers(gpu)) return {&test_stream()};
  static cuda::Context context([&] {
    GpuProperties other = gpu;
    other.has_hopper_attention = false;
    return other;
  }());
  static TestStream stream(context);
  return {&test_stream(), &stream};
}

struct GroupedCase {
  std::vector<int> counts;  // rows of each expert
  int64_t unused;           // rows of memory after them
  int64_t n, k;
};

void compare_grouped(const GroupedCase& c, Dtype dtype, CudaStream& stream) {
  std::vector<double> offsets{0};
  for (const int count : c.counts) offsets.push_back(offsets.back() + count);
  const auto experts = static_cast<int64_t>(c.counts.size()), used = static_cast<int64_t>(offsets.back()),
             rows = used + c.unused;
  const std::string what = fmt::format("{} E {} rows {} of {} N {} K {} on {}", enum_name(dtype), experts, used, rows,
                                       c.n, c.k, stream.name());
  // Rows that belong to no expert are NaN.
  const auto matrix = [&](int64_t width, const char* name) {
    Values values = random_values(used * width, name);
    values.resize(static_cast<size_t>(rows * width), std::nan(""));
    return Buffer(dtype, {rows, width}, values);
  };
  const Buffer at(Dtype::kI32, {experts + 1}, offsets), inp = matrix(c.k, "inp"), dout = matrix(c.n, "dout");
  const Buffer weight(dtype, {experts, c.n, c.k}, random_values(experts * c.n * c.k, "weight"));
  const double fp32 = 1e-5 * std::sqrt(static_cast<double>(std::max(c.n, c.k)));
  TRI_COMPARE_ON(stream, grouped_forward, what,
                 (Operands{{"out", Buffer(dtype, {rows, c.n})}, {"inp", inp}, {"weight", weight}, {"offsets", at}}),
                 TRI_MAKE(GroupedForward{}, out, inp, weight, offsets), rounding_of(dtype, fp32));
  TRI_COMPARE_ON(stream, grouped_input_gradient, what,
                 (Operands{{"dinp", Buffer(dtype, {rows, c.k})}, {"dout", dout}, {"weight", weight}, {"offsets", at}}),
                 TRI_MAKE(GroupedInputGradient{}, dinp, dout, weight, offsets), rounding_of(dtype, fp32));
  for (const float beta : {0.0f, 1.0f}) {
    const Buffer dweight =
        beta == 0 ? Buffer(Dtype::kF32, {experts, c.n, c.k})
                  : Buffer(Dtype::kF32, {experts, c.n, c.k}, random_values(experts * c.n * c.k, "dweight"));
    TRI_COMPARE_ON(stream, grouped_weight_gradient, fmt::format("{} beta {}", what, beta),
                   (Operands{{"dweight", dweight}, {"dout", dout}, {"inp", inp}, {"offsets", at}}),
                   TRI_MAKE((GroupedWeightGradient{.beta = beta}), dweight, dout, inp, offsets),
                   elements(1e-5 * std::sqrt(static_cast<double>(rows))));
  }
}

// The widths of FP8 operands are multiples of sixteen; an expert's rows begin anywhere.
void compare_grouped_fp8(const GroupedCase& c, Dtype gradients, CudaStream& stream) {
  std::vector<double> offsets{0};
  for (const int count : c.counts) offsets.push_back(offsets.back() + count);
  const auto experts = static_cast<int64_t>(c.counts.size()), used = static_cast<int64_t>(offsets.back()),
             rows = round_up(used + c.unused, kFp8Multiple);
  const std::string what = fmt::format("E {} rows {} of {} N {} K {}, {} on {}", experts, used, rows, c.n, c.k,
                                       enum_name(gradients), stream.name());
  const auto matrix = [&](Dtype dtype, int64_t width, bool transposed, const char* name) {
    Values values = random_values(rows * width, name);
    for (int64_t r = used; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i)
        values[static_cast<size_t>(transposed ? i * rows + r : r * width + i)] = std::nan("");
    return transposed ? Buffer(dtype, {width, rows}, values) : Buffer(dtype, {rows, width}, values);
  };
  const Buffer at(Dtype::kI32, {experts + 1}, offsets), half(Dtype::kF32, {1}, {0.5}),
      quarter(Dtype::kF32, {1}, {0.25});
  const Buffer weight(Dtype::kE4M3, {experts, c.n, c.k}, random_values(experts * c.n * c.k, "weight"));
  for (const Fp8Accumulation accumulation : {Fp8Accumulation::kFp32, Fp8Accumulation::kFast}) {
    // Tensor cores keep about 14 bits of a sum.
    const double tolerance = accumulation == Fp8Accumulation::kFast ? 4e-3 : 1e-3;
    TRI_COMPARE_ON(stream, grouped_fp8_gemm, what,
                   (Operands{{"out", Buffer(Dtype::kBF16, {rows, c.n})},
                             {"a", matrix(gradients, c.k, false, "a")},
                             {"b", weight},
                             {"offsets", at},
                             {"inverse_a", half},
                             {"inverse_b", quarter}}),
                   TRI_MAKE((GroupedFp8Gemm{.accumulation = accumulation}), out, a, b, offsets, inverse_a, inverse_b),
                   elements(kBf16Tolerance + tolerance * std::sqrt(static_cast<double>(c.k))));
    for (const float beta : {0.0f, 1.0f}) {
      const Buffer dweight =
          beta == 0 ? Buffer(Dtype::kF32, {experts, c.n, c.k})
                    : Buffer(Dtype::kF32, {experts, c.n, c.k}, random_values(experts * c.n * c.k, "dweight"));
      TRI_COMPARE_ON(stream, grouped_fp8_gradient, fmt::format("{} beta {}", what, beta),
                     (Operands{{"dweight", dweight},
                               {"dout_t", matrix(gradients, c.n, true, "dout")},
                               {"inp_t", matrix(Dtype::kE4M3, c.k, true, "inp")},
                               {"offsets", at},
                               {"inverse_a", half},
                               {"inverse_b", quarter}}),
                     TRI_MAKE((GroupedFp8Gradient{.beta = beta, .accumulation = accumulation}), dweight, dout_t, inp_t,
                              offsets, inverse_a, inverse_b),
                     elements(tolerance * std::sqrt(static_cast<double>(rows))));
    }
  }
}

TEST(CudaExperts, fp8_grouped_gemms_match_cpu) {
  TRI_NEEDS_GPU();
  const GroupedCase cases[] = {{{1}, 0, 16, 16},
                               {{0, 0}, 3, 64, 48},
                               {{3, 0, 5}, 1, 32, 16},
                               {{128}, 0, 256, 128},
                               {{0, 1, 127, 129, 0, 300, 64, 0}, 77, 144, 336},
                               {{257, 31, 32, 33, 700}, 5, 80, 528},
                               {std::vector<int>(130, 3), 9, 512, 64}};
  for (CudaStream* stream : grouped_streams())
    for (const Dtype gradients : {Dtype::kE4M3, Dtype::kE5M2})
      for (const GroupedCase& c : cases) compare_grouped_fp8(c, gradients, *stream);
}

// Members whose memory is on one GPU.
TEST(CudaExperts, peer_rows_match_cpu) {
  TRI_NEEDS_GPU();
  for (const auto& [members, experts, rows, width] :
       {std::tuple<int, int64_t, int64_t, int64_t>{1, 4, 3, 5}, {2, 8, 100, 64}, {3, 129, 64, 33}, {8, 512, 70, 256}})
    for (const double room : {static_cast<double>(members), 1.0})
      for (const Dtype dtype : kTypes) {
        const int64_t per_token = 3, pairs = rows * per_token, memory = static_cast<int64_t>(room * pairs),
                      of_owner = experts / members;
        Operands operands{
            {"tokens", Buffer(dtype, {members * rows, width}, random_values(members * rows * width, "tokens"))},
            {"weights", Buffer(Dtype::kF32, {members * pairs}, random_values(members * pairs, "w"))}};
        for (int m = 0; m < members; ++m) {
          const Buffer chosen(Dtype::kI32, {rows, per_token}, random_integers(pairs, experts, fmt::format("{}", m)));
          const Buffer place(Dtype::kI32, {rows, per_token}), pair(Dtype::kI32, {pairs}),
              offsets(Dtype::kI32, {experts + 1});
          cpu::sort_pairs({.place = place, .pair = pair, .offsets = offsets, .experts = chosen});
          const auto add = [&](const char* name, Buffer buffer) {
            operands.emplace_back(fmt::format("{} {}", name, m), std::move(buffer));
          };
          const auto kept = [&] {
            return Buffer(dtype, {memory, width}, Values(static_cast<size_t>(memory * width), 2.0));
          };
          add("pair", pair);
          add("offsets", offsets);
          add("first", Buffer(Dtype::kI32, {experts}));
          add("owned", Buffer(Dtype::kI32, {of_owner + 1}));
          add("origin", Buffer(Dtype::kI32, {memory}, Values(static_cast<size_t>(memory), -1.0)));
          add("table", Buffer(Dtype::kI32, {members, experts + 1}));
          add("pairs", Buffer(Dtype::kI32, {members, pairs}));
          add("taken", kept());
          add("weighted", kept());
          add("returned", Buffer(dtype, {pairs, width}));
          add("returned alongside others", Buffer(dtype, {pairs, width}));
          add("shortage", Buffer(Dtype::kI32, {kRowShortage}, Values(kRowShortage, 0.0)));
        }
        // Runs all members' operations, in the order that barriers would give.
        const auto run = [&, members = members](const Place& on, auto share, auto plan, auto take, auto fetch) {
          const auto of = [&](const char* name, int m) { return on(fmt::format("{} {}", name, m)); };
          const auto places = [&](const char* name) {
            PeerPlaces result{.data = {}, .members = members};
            for (int m = 0; m < members; ++m) result.data[static_cast<size_t>(m)] = of(name, m).data;
            return result;
          };
          for (int m = 0; m < members; ++m)
            share(SharePairs{.all_offsets = places("table"),
                             .all_pairs = places("pairs"),
                             .offsets = of("offsets", m),
                             .pair = of("pair", m),
                             .member = m});
          for (int m = 0; m < members; ++m) {
            plan(PlanRows{.first = of("first", m),
                          .offsets = of("owned", m),
                          .origin = of("origin", m),
                          .shortage = of("shortage", m),
                          .all_offsets = of("table", m),
                          .all_pairs = of("pairs", m),
                          .member = m});
            for (const bool weighted : {false, true})
              take(GatherRows{.out = of(weighted ? "weighted" : "taken", m),
                              .inp = on("tokens"),
                              .index = of("origin", m),
                              .divisor = static_cast<int>(per_token),
                              .weights = weighted ? on("weights") : Tensor{},
                              .used = of("owned", m).flat(of_owner, 1)});
          }
          for (int m = 0; m < members; ++m)
            for (const bool alongside : {false, true})
              fetch(FetchRows{.out = of(alongside ? "returned alongside others" : "returned", m),
                              .from = places("taken"),
                              .offsets = of("offsets", m),
                              .first = of("first", m),
                              .rows = memory,
                              .multiprocessors = alongside ? 2 : 0});
        };
        Operands expected = operands;
        std::vector<std::unique_ptr<DeviceBuffer>> memory_of;
        Place host, device;
        for (size_t i = 0; i < operands.size(); ++i) {
          host.add(operands[i].first, expected[i].second);
          memory_of.push_back(std::make_unique<DeviceBuffer>(operands[i].second));
          device.add(operands[i].first, *memory_of.back());
        }
        run(host, cpu::share_pairs, cpu::plan_rows, cpu::gather_rows, cpu::fetch_rows);
        const auto on_gpu = [](auto op) { return [op](const auto& args) { op(args, test_stream()); }; };
        run(device, on_gpu([](const SharePairs& a, CudaStream& s) { cuda::share_pairs(a, s); }),
            on_gpu([](const PlanRows& a, CudaStream& s) { cuda::plan_rows(a, s); }),
            on_gpu([](const GatherRows& a, CudaStream& s) { cuda::gather_rows(a, s); }),
            on_gpu([](const FetchRows& a, CudaStream& s) { cuda::fetch_rows(a, s); }));
        for (size_t i = 0; i < operands.size(); ++i)
          EXPECT_EQ(difference(memory_of[i]->values(operands[i].second), expected[i].second.values(), same_bits), "")
              << operands[i].first << ", " << members << " members, memory for " << memory;
      }
}

TEST(CudaExperts, grouped_gemms_match_cpu) {
  TRI_NEEDS_GPU();
  const GroupedCase cases[] = {{{1}, 0, 8, 8},
                               {{0, 0}, 3, 64, 40},
                               {{3, 0, 5}, 1, 24, 17},
                               {{128}, 0, 256, 128},
                               {{0, 1, 127, 129, 0, 300, 64, 0}, 77, 136, 328},
                               {{0, 0, 513, 0}, 0, 264, 64},
                               {{257, 31, 32, 33, 700}, 5, 72, 520},
                               {std::vector<int>(130, 3), 9, 512, 64}};
  for (CudaStream* stream : grouped_streams())
    for (const Dtype dtype : kTypes)
      for (const GroupedCase& c : cases) compare_grouped(c, dtype, *stream);
}

}  // namespace
}  // namespace tri::test
