// The ops of a mixture of experts against float64 and finite differences: routers with ties, with all rows on one
// expert and with experts without rows; sorting and combining of rows; GEMMs of experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

struct Routed {
  Buffer experts, weights, counts, share_sums;
};

Routed route(const Values& logits, int64_t rows, int64_t experts, int64_t per_token, const RouterRule& rule,
             const Values& bias = {}) {
  const Buffer inp(Dtype::kF32, {rows, experts}, logits);
  const Buffer b = bias.empty() ? Buffer() : Buffer(Dtype::kF32, {experts}, bias);
  Routed out{{Dtype::kI32, {rows, per_token}},
             {Dtype::kF32, {rows, per_token}},
             {Dtype::kF32, {experts}},
             {Dtype::kF32, {experts + 1}}};
  run_checked(cpu::router_forward, {.experts = out.experts,
                                    .weights = out.weights,
                                    .counts = out.counts,
                                    .share_sums = out.share_sums,
                                    .logits = inp,
                                    .bias = b,
                                    .rule = rule});
  return out;
}

// The objective of a router for given choices: weights · dweights, and the two losses.
struct Objective {
  int64_t rows, experts, per_token;
  RouterRule rule;
  Values chosen, counts, dweights;
  double aux_scale = 0, z_scale = 0;

  double operator()(const Values& logits) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      Values s(static_cast<size_t>(experts));
      double softmax = 0, total = 1e-20;
      for (int64_t e = 0; e < experts; ++e) softmax += std::exp(logits[r * experts + e]);
      for (int64_t e = 0; e < experts; ++e) {
        const double x = logits[r * experts + e];
        s[e] = rule.kind == Router::kSoftmax ? std::exp(x) / softmax : 1 / (1 + std::exp(-x));
        total += s[e];
      }
      double of_chosen = 1e-20;
      for (int64_t k = 0; k < per_token; ++k) of_chosen += s[static_cast<size_t>(chosen[r * per_token + k])];
      for (int64_t k = 0; k < per_token; ++k)
        sum += dweights[r * per_token + k] * rule.scale * s[static_cast<size_t>(chosen[r * per_token + k])] /
               (rule.renormalize ? of_chosen : 1);
      for (int64_t e = 0; e < experts; ++e) sum += aux_scale * counts[e] * s[e] / total;
      sum += z_scale * std::pow(std::log(softmax), 2);
    }
    return sum;
  }
};

TEST(Router, gradients_equal_finite_differences) {
  for (const Router kind : {Router::kSoftmax, Router::kSigmoid})
    for (const bool renormalize : {false, true})
      for (const bool losses : {false, true}) {
        SCOPED_TRACE(fmt::format("{} renormalize {} losses {}", enum_name(kind), renormalize, losses));
        const int64_t rows = 5, experts = 8, per_token = 3;
        Values logits = random_values(rows * experts, "logits", 1.5);
        Objective of{rows, experts, per_token, {.kind = kind, .renormalize = renormalize, .scale = 2.5f}, {}, {}, {}};
        const Routed routed = route(logits, rows, experts, per_token, of.rule);
        of.chosen = routed.experts.values();
        of.counts = routed.counts.values();
        of.dweights = random_values(rows * per_token, "dweights");
        if (losses) of.aux_scale = 0.25, of.z_scale = 0.5;
        const Buffer dlogits(Dtype::kF32, {rows, experts}), inp(Dtype::kF32, {rows, experts}, logits);
        const Buffer dweights(Dtype::kF32, {rows, per_token}, of.dweights);
        run_checked(cpu::router_backward, {.dlogits = dlogits,
                                           .dweights = dweights,
                                           .logits = inp,
                                           .experts = routed.experts,
                                           .counts = losses ? Tensor(routed.counts) : Tensor{},
                                           .rule = of.rule,
                                           .aux_scale = static_cast<float>(of.aux_scale),
                                           .z_scale = static_cast<float>(of.z_scale)});
        expect_gradient("logits", dlogits.values(), logits, [&] { return of(logits); });
      }
}

TEST(Router, of_equal_scores_the_lower_index_comes_first) {
  const Values logits{1, 1, 1, 1, 0, 2, 2, 0};
  const Routed routed = route(logits, 2, 4, 2, {});
  EXPECT_EQ(routed.experts.values(), (Values{0, 1, 1, 2}));
  expect_close("weights", routed.weights.values(), {0.5, 0.5, 0.5, 0.5});
  EXPECT_EQ(routed.counts.values(), (Values{1, 2, 1, 0}));
}

TEST(Router, groups_with_the_largest_two_scores_are_the_candidates) {
  // Group 0 has the single largest score, group 1 the largest sum of two.
  const Values logits{5, -5, -5, 1, 1, 0, -1, -1, -2};
  const RouterRule rule{.kind = Router::kSigmoid, .renormalize = true, .scale = 1, .groups = 3, .top_groups = 1};
  EXPECT_EQ(route(logits, 1, 9, 2, rule).experts.values(), (Values{3, 4}));
  // A bias changes the choice, not the weights.
  const Routed routed = route(logits, 1, 9, 2, rule, {0, 0, 0, 0, 0, 0, 3, 3, 3});
  EXPECT_EQ(routed.experts.values(), (Values{6, 7}));
  expect_close("weights", routed.weights.values(), {0.5, 0.5});
}

TEST(Router, statistics_are_sums_over_rows) {
  const int64_t rows = 7, experts = 5;
  const Values logits = random_values(rows * experts, "logits");
  const Routed routed = route(logits, rows, experts, 2, {});
  Values expected(static_cast<size_t>(experts) + 1);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[r * experts + e]);
    for (int64_t e = 0; e < experts; ++e) expected[e] += std::exp(logits[r * experts + e]) / sum;
    expected.back() += std::pow(std::log(sum), 2);
  }
  expect_close("share_sums", routed.share_sums.values(), expected);
  const Values counts = routed.counts.values();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 2.0 * rows);

  const Buffer load(Dtype::kF32, {experts}, Values(5, 1.0)), losses(Dtype::kF32, {2}, {1, 2});
  cpu::router_totals({.load = load,
                      .losses = losses,
                      .counts = routed.counts,
                      .all_counts = routed.counts,
                      .share_sums = routed.share_sums,
                      .aux_scale = 0.5f,
                      .z_scale = 0.25f});
  Values shares = expected;
  shares.pop_back();
  expect_close("losses", losses.values(), {1 + 0.5 * dot(counts, shares), 2 + 0.25 * expected.back()});
  expect_close("load", load.values(), minus(counts, Values(5, -1.0)));
}

TEST(Router, biases_move_towards_the_mean_unless_the_step_is_refused) {
  const Buffer bias(Dtype::kF32, {4}, {0, 1, 2, 3}), load(Dtype::kF32, {4}, {4, 8, 6, 6});
  const auto update = [&](double grad_scale) {
    const Buffer scale(Dtype::kF32, {1}, {grad_scale});
    cpu::router_bias_update({.bias = bias, .load = load, .grad_scale = scale, .rate = 0.5f});
  };
  update(std::nan(""));
  EXPECT_EQ(bias.values(), (Values{0, 1, 2, 3}));
  update(1);
  EXPECT_EQ(bias.values(), (Values{0.5, 0.5, 2, 3}));
}

TEST(ExpertRows, sort_is_stable_and_its_inverse_is_the_place) {
  for (const int64_t experts : {1, 4, 9})
    for (const bool one : {false, true}) {  // all pairs on the last expert
      const int64_t rows = 11, per_token = 3;
      Values chosen = random_integers(rows * per_token, experts, "experts");
      if (one) std::ranges::fill(chosen, static_cast<double>(experts - 1));
      const Buffer inp(Dtype::kI32, {rows, per_token}, chosen), place(Dtype::kI32, {rows, per_token});
      const Buffer pair(Dtype::kI32, {rows * per_token}), offsets(Dtype::kI32, {experts + 1});
      run_checked(cpu::sort_pairs, {.place = place, .pair = pair, .offsets = offsets, .experts = inp});
      std::vector<int> order(chosen.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, [&](int p) { return chosen[static_cast<size_t>(p)]; });
      EXPECT_EQ(pair.values(), Values(order.begin(), order.end()));
      for (size_t i = 0; i < order.size(); ++i)
        EXPECT_EQ(place.values()[static_cast<size_t>(order[i])], static_cast<double>(i));
      for (int64_t e = 0; e <= experts; ++e)
        EXPECT_EQ(offsets.values()[static_cast<size_t>(e)],
                  static_cast<double>(std::ranges::count_if(chosen, [&](double c) { return c < e; })));
    }
}

TEST(ExpertRows, rows_of_several_sources_are_sorted_by_expert) {
  const Buffer counts(Dtype::kI32, {2, 3}, {2, 0, 1, 1, 0, 2});  // arrived: 0 0 2 | 0 2 2
  const Buffer place(Dtype::kI32, {8}, Values(8, 7.0)), pair(Dtype::kI32, {8}, Values(8, 7.0));
  const Buffer offsets(Dtype::kI32, {4});
  run_checked(cpu::merge_sources, {.place = place, .pair = pair, .offsets = offsets, .counts = counts});
  EXPECT_EQ(pair.values(), (Values{0, 1, 3, 2, 4, 5, 7, 7}));
  EXPECT_EQ(place.values(), (Values{0, 1, 3, 2, 4, 5, 7, 7}));
  EXPECT_EQ(offsets.values(), (Values{0, 3, 3, 6}));
}

TEST(ExpertRows, combine_and_its_gradient_equal_float64) {
  const int64_t rows = 6, per_token = 2, width = 9, all = rows * per_token;
  const Values chosen = random_integers(all, 4, "experts");
  const Buffer experts(Dtype::kI32, {rows, per_token}, chosen), place(Dtype::kI32, {rows, per_token});
  const Buffer pair(Dtype::kI32, {all}), offsets(Dtype::kI32, {5});
  cpu::sort_pairs({.place = place, .pair = pair, .offsets = offsets, .experts = experts});
  const Values at = place.values();
  Values x = random_values(rows * width, "x"), y = random_values(all * width, "y"), w = random_values(all, "w");
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const double tolerance = dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance;
    const Buffer inp(dtype, {rows, width}, x), gathered(dtype, {all, width}), in_rows(dtype, {all, width}, y);
    cpu::gather_rows({.out = gathered, .inp = inp, .index = pair, .divisor = static_cast<int>(per_token)});
    for (int64_t p = 0; p < all; ++p)
      for (int64_t c = 0; c < width; ++c)
        EXPECT_EQ(gathered.values()[static_cast<size_t>(at[p]) * width + c], x[p / per_token * width + c]);
    const Buffer out(dtype, {rows, width}), weights(Dtype::kF32, {rows, per_token}, w);
    run_checked(cpu::combine_rows, {.out = out, .rows = in_rows, .place = place, .weights = weights, .addend = inp});
    const auto combined = [&] {
      Values sum = x;
      for (int64_t p = 0; p < all; ++p)
        for (int64_t c = 0; c < width; ++c)
          sum[p / per_token * width + c] += w[p] * y[static_cast<size_t>(at[p]) * width + c];
      return sum;
    };
    expect_close("out", out.values(), combined(), tolerance);

    const Values dout = random_values(rows * width, "dout");
    const Buffer dy(dtype, {rows, width}, dout), both(dtype, {all, width}, y), dweights(Dtype::kF32, {rows, per_token});
    run_checked(cpu::combine_backward,
                {.drows = both, .dweights = dweights, .dout = dy, .rows = both, .place = place, .weights = weights});
    expect_gradient(
        "w", dweights.values(), w, [&] { return dot(dout, combined()); }, tolerance);
    if (dtype == Dtype::kF32) expect_gradient("y", both.values(), y, [&] { return dot(dout, combined()); });
  }
}

TEST(GroupedGemm, equals_a_gemm_per_expert) {
  const int64_t experts = 4, outputs = 5, inputs = 7, memory = 12;
  for (const Values& ends : {Values{0, 3, 3, 4, 9}, Values{0, 0, 0, 9, 9}, Values{0, 0, 0, 0, 0}})
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const double tolerance = dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance;
      const Values x = random_values(memory * inputs, "x"), w = random_values(experts * outputs * inputs, "w");
      const Values dy = random_values(memory * outputs, "dy"), start = random_values(w.size(), "start");
      const Buffer offsets(Dtype::kI32, {experts + 1}, ends), weight(dtype, {experts, outputs, inputs}, w);
      const Buffer inp(dtype, {memory, inputs}, x), dout(dtype, {memory, outputs}, dy);
      const Values kept_out(static_cast<size_t>(memory * outputs), 3.0);
      const Values kept_inp(static_cast<size_t>(memory * inputs), 3.0);
      const Buffer out(dtype, {memory, outputs}, kept_out), dinp(dtype, {memory, inputs}, kept_inp);
      const Buffer added(Dtype::kF32, {experts, outputs, inputs}, start),
          dweight(Dtype::kF32, {experts, outputs, inputs});
      const GroupedForward forward{.out = out, .inp = inp, .weight = weight, .offsets = offsets};
      const GroupedInputGradient gradient{.dinp = dinp, .dout = dout, .weight = weight, .offsets = offsets};
      GroupedWeightGradient of_weight{.dweight = dweight, .dout = dout, .inp = inp, .offsets = offsets};
      check(forward), check(gradient), check(of_weight);
      cpu::grouped_forward(forward);
      cpu::grouped_input_gradient(gradient);
      cpu::grouped_weight_gradient(of_weight);
      of_weight.dweight = added;
      of_weight.beta = 1;
      cpu::grouped_weight_gradient(of_weight);
      Values y = kept_out, dx = kept_inp, dw(w.size()), sum = start;  // rows beyond the last offset stay
      for (int64_t e = 0; e < experts; ++e)
        for (auto r = static_cast<int64_t>(ends[e]); r < static_cast<int64_t>(ends[e + 1]); ++r)
          for (int64_t n = 0; n < outputs; ++n) {
            if (n == 0) std::fill_n(&dx[r * inputs], inputs, 0.0);
            y[r * outputs + n] = 0;
            for (int64_t k = 0; k < inputs; ++k)
              y[r * outputs + n] += x[r * inputs + k] * w[(e * outputs + n) * inputs + k];
            for (int64_t k = 0; k < inputs; ++k) {
              dx[r * inputs + k] += dy[r * outputs + n] * w[(e * outputs + n) * inputs + k];
              dw[(e * outputs + n) * inputs + k] += dy[r * outputs + n] * x[r * inputs + k];
            }
          }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += dw[i];
      expect_close("out", out.values(), y, tolerance);
      expect_close("dinp", dinp.values(), dx, tolerance);
      expect_close("dweight", dweight.values(), dw);
      expect_close("dweight added", added.values(), sum);
    }
}

TEST(GroupedGemm, fp8_equals_a_gemm_per_expert) {
  const int64_t experts = 4, outputs = 16, inputs = 32, memory = 48;
  for (const Values& ends : {Values{0, 3, 3, 21, 40}, Values{0, 0, 0, 9, 9}, Values{0, 0, 0, 0, 0}}) {
    const Values x = random_values(memory * inputs, "x"), w = random_values(experts * outputs * inputs, "w");
    const Values start = random_values(w.size(), "start");
    const Buffer offsets(Dtype::kI32, {experts + 1}, ends), a(Dtype::kE5M2, {memory, inputs}, x);
    const Buffer b(Dtype::kE4M3, {experts, outputs, inputs}, w), half(Dtype::kF32, {1}, {0.5});
    const Buffer quarter(Dtype::kF32, {1}, {0.25});
    const Buffer out(Dtype::kF32, {memory, outputs}, Values(static_cast<size_t>(memory * outputs), 3.0));
    const GroupedFp8Gemm gemm{.out = out, .a = a, .b = b, .offsets = offsets, .inverse_a = half, .inverse_b = quarter};
    const Buffer dout_t(Dtype::kE5M2, {outputs, memory}, random_values(outputs * memory, "dout"));
    const Buffer inp_t(Dtype::kE4M3, {inputs, memory}, random_values(inputs * memory, "inp"));
    const Buffer dweight(Dtype::kF32, {experts, outputs, inputs}),
        added(Dtype::kF32, {experts, outputs, inputs}, start);
    GroupedFp8Gradient gradient{.dweight = dweight,
                                .dout_t = dout_t,
                                .inp_t = inp_t,
                                .offsets = offsets,
                                .inverse_a = half,
                                .inverse_b = quarter};
    check(gemm), check(gradient);
    cpu::grouped_fp8_gemm(gemm);
    cpu::grouped_fp8_gradient(gradient);
    gradient.dweight = added;
    gradient.beta = 1;
    cpu::grouped_fp8_gradient(gradient);
    const Values ax = a.values(), bw = b.values(), dy = dout_t.values(), xi = inp_t.values();
    Values y(static_cast<size_t>(memory * outputs), 3.0), dw(w.size(), 0.0), sum = start;
    for (int64_t e = 0; e < experts; ++e)
      for (auto r = static_cast<int64_t>(ends[e]); r < static_cast<int64_t>(ends[e + 1]); ++r)
        for (int64_t n = 0; n < outputs; ++n) {
          double of_row = 0;
          for (int64_t k = 0; k < inputs; ++k) {
            of_row += 0.125 * ax[r * inputs + k] * bw[(e * outputs + n) * inputs + k];
            dw[(e * outputs + n) * inputs + k] += 0.125 * dy[n * memory + r] * xi[k * memory + r];
          }
          y[r * outputs + n] = of_row;
        }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += dw[i];
    expect_close("out", out.values(), y);
    expect_close("dweight", dweight.values(), dw);
    expect_close("dweight added", added.values(), sum);
  }
}

// Members of one process: the rows that they take are those that arrive in parts and are merged.
TEST(PeerRows, equal_rows_that_arrive_in_parts) {
  const int64_t experts = 6, rows = 5, per_token = 2, width = 3, pairs = rows * per_token;
  for (const int members : {1, 2, 3})
    for (const int64_t memory : {members * pairs, int64_t{4}}) {
      const int64_t of_owner = experts / members;
      const auto integers = [](std::initializer_list<int64_t> shape) { return Buffer(Dtype::kI32, shape); };
      const Buffer tokens(Dtype::kF32, {members * rows, width}, random_values(members * rows * width, "tokens"));
      std::vector<Buffer> pair, offsets, first, owned, origin, table, all_pairs, taken, shortage;
      for (int m = 0; m < members; ++m) {
        const Buffer chosen(Dtype::kI32, {rows, per_token}, random_integers(pairs, experts, fmt::format("{}", m)));
        pair.push_back(integers({pairs}));
        offsets.push_back(integers({experts + 1}));
        cpu::sort_pairs(
            {.place = integers({rows, per_token}), .pair = pair[m], .offsets = offsets[m], .experts = chosen});
        first.push_back(integers({experts}));
        owned.push_back(integers({of_owner + 1}));
        origin.push_back(integers({memory}));
        table.push_back(integers({members, experts + 1}));
        all_pairs.push_back(integers({members, pairs}));
        taken.emplace_back(Dtype::kF32, std::initializer_list<int64_t>{memory, width});
        shortage.emplace_back(Dtype::kI32, std::initializer_list<int64_t>{kRowShortage}, Values(kRowShortage, 0.0));
      }
      const auto places = [&](const std::vector<Buffer>& buffers) {
        PeerPlaces result{.data = {}, .members = members};
        for (size_t m = 0; m < buffers.size(); ++m) result.data[m] = Tensor(buffers[m]).data;
        return result;
      };
      for (int m = 0; m < members; ++m) {
        run_checked(cpu::share_pairs, {.all_offsets = places(table),
                                       .all_pairs = places(all_pairs),
                                       .offsets = offsets[m],
                                       .pair = pair[m],
                                       .member = m});
      }
      for (int m = 0; m < members; ++m) {
        run_checked(cpu::plan_rows, {.first = first[m],
                                     .offsets = owned[m],
                                     .origin = origin[m],
                                     .shortage = shortage[m],
                                     .all_offsets = table[m],
                                     .all_pairs = all_pairs[m],
                                     .member = m});
        run_checked(cpu::gather_rows, {.out = taken[m],
                                       .inp = tokens,
                                       .index = origin[m],
                                       .divisor = static_cast<int>(per_token),
                                       .used = Tensor(owned[m]).flat(of_owner, 1)});
      }
      const Values all = tokens.values();
      int64_t needed = 0;
      for (int owner = 0; owner < members; ++owner) {
        Values expected;  // by expert, then source, then pair
        for (int64_t e = owner * of_owner; e < (owner + 1) * of_owner; ++e)
          for (int m = 0; m < members; ++m)
            for (auto i = static_cast<int64_t>(offsets[m].values()[e]); i < offsets[m].values()[e + 1]; ++i)
              for (int64_t c = 0; c < width; ++c)
                expected.push_back(all[(m * rows + static_cast<int64_t>(pair[m].values()[i]) / per_token) * width + c]);
        const auto count = static_cast<int64_t>(expected.size()) / width, kept = std::min(count, memory);
        needed = std::max(needed, count);
        EXPECT_EQ(owned[owner].values().back(), kept);
        Values found = taken[owner].values();
        found.resize(static_cast<size_t>(kept * width));
        expected.resize(found.size());
        EXPECT_EQ(found, expected) << owner << " of " << members;
      }
      for (int m = 0; m < members; ++m) {
        EXPECT_EQ(shortage[m].values()[0], needed > memory ? static_cast<double>(needed) : 0);
        const Buffer returned(Dtype::kF32, {pairs, width});
        run_checked(cpu::fetch_rows,
                    {.out = returned, .from = places(taken), .offsets = offsets[m], .first = first[m], .rows = memory});
        const Values back = returned.values();
        int64_t missing = 0;
        for (int64_t i = 0; i < pairs; ++i) {
          const auto token = m * rows + static_cast<int64_t>(pair[m].values()[i]) / per_token;
          if (std::isnan(back[i * width])) ++missing;
          for (int64_t c = 0; c < width && !std::isnan(back[i * width]); ++c)
            EXPECT_EQ(back[i * width + c], all[token * width + c]);
        }
        EXPECT_TRUE(missing == 0 || needed > memory) << missing;
      }
    }
}

TEST(ExpertOps, checks_refuse_what_does_not_fit) {
  const Buffer logits(Dtype::kF32, {3, 8}), experts(Dtype::kI32, {3, 2}), weights(Dtype::kF32, {3, 2});
  const Buffer counts(Dtype::kF32, {8}), sums(Dtype::kF32, {9}), bias(Dtype::kF32, {8});
  RouterForward forward{
      .experts = experts, .weights = weights, .counts = counts, .share_sums = sums, .logits = logits, .bias = {}};
  EXPECT_NO_THROW(check(forward));
  forward.bias = bias;
  EXPECT_THROW(check(forward), Fatal) << "of a softmax router";
  forward.rule = {.kind = Router::kSigmoid, .groups = 3};
  EXPECT_THROW(check(forward), Fatal) << "groups that do not divide the experts";
  forward.rule = {.kind = Router::kSigmoid, .groups = 8, .top_groups = 1};
  EXPECT_THROW(check(forward), Fatal) << "too few candidates";
  const Buffer weight(Dtype::kF32, {4, 5, 8}), out(Dtype::kF32, {3, 5}), offsets(Dtype::kI32, {4});
  EXPECT_THROW(check(GroupedForward{.out = out, .inp = logits, .weight = weight, .offsets = offsets}), Fatal);
  EXPECT_THROW(
      check(RouterTotals{.load = counts, .losses = bias, .counts = counts, .all_counts = counts, .share_sums = sums}),
      Fatal);
}

}  // namespace
}  // namespace tri::test
