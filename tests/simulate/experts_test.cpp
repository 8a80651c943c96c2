// Steps and memory of models with experts: how they are divided, what the rows' way costs, and the GEMMs of experts.
#include <gtest/gtest.h>

#include <set>

#include "lib/simulate/gemm_times.h"
#include "lib/simulate/planner.h"
#include "lib/simulate/published.h"
#include "lib/simulate/simulation.h"

namespace tri {
namespace {

Cluster h100() { return value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100.yaml")); }

Config parsed(const std::string& preset, const std::vector<std::string>& settings) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + preset + ".yaml";
  return value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, settings));
}

Workload qwen(int ranks, const std::vector<std::string>& settings = {}) {
  return workload_of(value_or_throw(resolve_config(parsed("qwen3_30b_a3b", settings), ranks)));
}

StepPrediction step(const Workload& w, const Cluster& c = h100()) {
  EXPECT_EQ(problem_of(w), "");
  const StepPrediction step = predict_step(w, c, RingTimes(c), Stragglers::kOff);
  double sum = 0;
  for (const auto& [name, seconds] : named_parts(step.parts)) sum += seconds;
  EXPECT_NEAR(sum, step.seconds, 1e-9 * step.seconds);
  return step;
}

TEST(Experts, every_weight_is_on_the_ranks_that_divide_it) {
  Config config = parsed("qwen3_30b_a3b", {"parallel.tp=2", "model.shared_experts=1"});
  config = value_or_throw(resolve_config(config, 16));
  const Workload w = workload_of(config);
  const Layers layers = w.layers();
  const Elements elements = elements_of_stage(w, layers, 0);
  const double hidden = w.model.hidden, ffn = w.model.expert_hidden, count = w.model.layers;
  EXPECT_EQ(elements[ReducedOver::kExperts], count * 3 * hidden * ffn * w.model.experts / 8);
  EXPECT_EQ(elements[ReducedOver::kStage], count * hidden * (w.model.experts + 3 * ffn));
  EXPECT_EQ(w.reducing(), 8);
  EXPECT_EQ(w.reducing(ReducedOver::kStage), 16);
  EXPECT_EQ(w.reducing(ReducedOver::kExperts), 2);
  EXPECT_EQ(w.reducing_stride(ReducedOver::kExperts), 8);
  Workload one = w;
  one.ep = 1;
  EXPECT_DOUBLE_EQ(checkpoint_bytes(one), checkpoint_bytes(w));
  EXPECT_GT(parameters_of_stage(one, layers, 0), 4 * parameters_of_stage(w, layers, 0));
}

TEST(Experts, rows_pay_for_their_way) {
  const StepPrediction inside = step(qwen(16)), here = step(qwen(16, {"parallel.ep=1"}));
  EXPECT_EQ(here.parts.ep, 0);
  EXPECT_GT(inside.parts.ep, 0);
  EXPECT_GT(step(qwen(16, {"parallel.ep=16"})).parts.ep, 2 * inside.parts.ep) << "between machines";
  Workload uneven = qwen(16);
  uneven.imbalance = 1.5;
  EXPECT_GT(step(uneven).parts.ep, inside.parts.ep);
  EXPECT_GT(step(uneven).parts.gemm, inside.parts.gemm);
  // The rows of a rank are those of its tokens, whatever the number of tp ranks.
  EXPECT_LT(step(qwen(16, {"parallel.tp=2"})).parts.tp, step(qwen(16)).seconds);
}

// The sums of many experts' rows differ less than those of few.
TEST(Experts, ranks_with_many_experts_share_the_rows_evenly) {
  const auto fullest = [](int ep, double given = 0) {
    Workload w = qwen(16, {"parallel.ep=" + std::to_string(ep)});
    w.imbalance = given;
    return w.fullest_rank();
  };
  EXPECT_EQ(fullest(1), 1);
  EXPECT_NEAR(fullest(2), 1.01, 0.003);
  EXPECT_NEAR(fullest(16), 1.08, 0.01);
  EXPECT_EQ(fullest(16, 1.5), 1.5);
}

// A step's first microbatch writes gradients of experts' weights and does not read old ones.
TEST(Experts, the_first_microbatch_overwrites_gradients) {
  const auto gemms = [](int microbatches) {
    const std::string batch = std::to_string(16 * microbatches);
    return step(qwen(16, {"parallel.ep=1", "data.micro_batch=1", "data.global_batch=" + batch})).parts.gemm /
           microbatches;
  };
  EXPECT_LT(gemms(1), 0.95 * gemms(8));
  EXPECT_GT(gemms(16), gemms(8));
}

// The return in the backward pass is alongside the gradient of fc2's weights; the rest of the rows' way is not.
TEST(Experts, copies_hide_a_part_of_the_rows_way) {
  const auto ep_seconds = [](double hidden_share) {
    Cluster cluster = h100();
    cluster.software.hidden_share = hidden_share;
    return step(qwen(16, {"parallel.ep=2", "parallel.ep_transfers=copies"}), cluster).parts.ep;
  };
  EXPECT_LT(ep_seconds(0.87), 0.85 * ep_seconds(0));
  EXPECT_GT(ep_seconds(0.87), 0.4 * ep_seconds(0));
}

// Rows of FP8 are cast before they are copied to each of their experts.
TEST(Experts, fp8_rows_are_cast_once) {
  const auto memory = [](bool own) {
    Workload w = qwen(16, {"precision.gemm=fp8"});
    w.own_experts = own;
    return step(w).parts.memory;
  };
  EXPECT_LT(memory(true), 0.85 * memory(false));
}

// Copies carry all tokens and not only those of a rank's experts, but no host waits for their numbers.
TEST(Experts, copies_pay_for_all_tokens_but_not_for_the_host) {
  const auto ep_seconds = [](const std::string& transfers, double exchange_us) {
    Cluster cluster = h100();
    cluster.software.exchange_us = exchange_us;
    return step(qwen(16, {"parallel.ep_transfers=" + transfers}), cluster).parts.ep;
  };
  EXPECT_EQ(ep_seconds("copies", 0), ep_seconds("copies", 1e4));
  EXPECT_LT(ep_seconds("collectives", 0), ep_seconds("collectives", 1e4));
  EXPECT_NE(ep_seconds("collectives", 0), ep_seconds("copies", 0));
}

TEST(Experts, an_all_to_all_uses_both_networks_at_once) {
  Cluster c;
  c.node.gb_per_s = 200;
  c.network.gb_per_s = 50;
  c.network.share = 1;
  const RingTimes times(c);
  const auto seconds = [&](int ranks, int on_node) {
    return times.seconds({Collective::kAllToAll, 16e9, ranks, on_node, TransferAxis::kEp});
  };
  EXPECT_DOUBLE_EQ(seconds(8, 8), (c.node.start_us + c.node.latency_us) * 1e-6 + 14e9 / 200e9);
  EXPECT_DOUBLE_EQ(seconds(16, 8), (c.node.start_us + c.network.latency_us) * 1e-6 + 8e9 / 50e9);
  EXPECT_EQ(seconds(1, 1), 0);
}

TEST(Experts, one_group_is_a_gemm_and_many_read_all_weights) {
  Cluster c = h100();
  c.software.grouped_share = 1;
  c.software.grouped_rows = 0;
  const auto grouped = [&](double groups, GroupSizes sizes, double m) {
    return grouped_gemm_seconds(c, Numbers::kBf16, groups, sizes, m, 2048, 2048, kWritesBf16);
  };
  EXPECT_DOUBLE_EQ(grouped(1, GroupSizes::kUneven, 4096),
                   gemm_seconds(c, Numbers::kBf16, 4096, 2048, 2048, kWritesBf16));
  EXPECT_GT(grouped(128, GroupSizes::kUneven, 512), grouped(128, GroupSizes::kEqual, 512));
  const double whole_tiles = grouped(128, GroupSizes::kUneven, 512);
  c.software.grouped_rows = 32;
  EXPECT_LT(grouped(128, GroupSizes::kUneven, 512), 0.95 * whole_tiles);
  EXPECT_GT(grouped(128, GroupSizes::kEqual, 8), 128 * 2048.0 * 2048 * 2 / memory_bytes_per_second(c));
}

TEST(Experts, fp8_gemms_have_the_share_of_bf16_ones_unless_a_cluster_file_sets_their_own) {
  const auto seconds = [](const std::string& shares) {
    const auto c = parse_cluster("device: {fp8_tflops: 1979}\nsoftware: {" + shares + "}\n", "c.yaml", {});
    EXPECT_TRUE(c) << c.error().message;
    return grouped_gemm_seconds(c.value(), Numbers::kFp8, 8, GroupSizes::kEqual, 4096, 4096, 4096, kWritesBf16);
  };
  const double half = seconds("grouped_share: 0.5");
  EXPECT_EQ(half, seconds("grouped_share: 0.5, fp8_grouped_share: 0.5"));
  EXPECT_EQ(half, seconds("grouped_share: 0.5, fp8_grouped_share: 0"));
  EXPECT_NE(half, seconds("grouped_share: 0.5, fp8_grouped_share: 0.8"));
}

// kernels/measurements/experts.md: TFLOP/s forward and of the inputs' gradient, and milliseconds of the weights' that
// are added to fp32.
TEST(Experts, gemms_of_an_h100_take_what_was_measured) {
  struct Case {
    double groups, rows, n, k, forward, gradient, weight_ms;
    GroupSizes sizes = GroupSizes::kEqual;
  };
  const Cluster c = h100();
  for (const Case& one :
       {Case{128, 512, 1536, 2048, 695, 700, 1.64}, Case{128, 512, 1536, 2048, 675, 662, 1.64, GroupSizes::kUneven},
        Case{128, 512, 2048, 768, 633, 623, 0.86}, Case{128, 512, 2048, 768, 579, 584, 0.86, GroupSizes::kUneven},
        Case{8, 2048, 28672, 4096, 717, 689, 6.2}, Case{8, 2048, 4096, 14336, 709, 712, 3.1}}) {
    const double flops = 2 * one.groups * one.rows * one.n * one.k;
    const auto error = [&](double measured, double m, double n, double k, GroupSizes sizes, double bytes) {
      return grouped_gemm_seconds(c, Numbers::kBf16, one.groups, sizes, m, n, k, bytes) / measured - 1;
    };
    const double forward = error(flops / one.forward * 1e-12, one.rows, one.n, one.k, one.sizes, kWritesBf16);
    const double gradient = error(flops / one.gradient * 1e-12, one.rows, one.k, one.n, one.sizes, kWritesBf16);
    const double weight = error(one.weight_ms * 1e-3, one.n, one.k, one.rows, GroupSizes::kEqual, kAddsFp32);
    fmt::print("{} x {} rows, {} x {}: forward {:+.1f} %, gradient {:+.1f} %, weights {:+.1f} %\n", one.groups,
               one.rows, one.n, one.k, 100 * forward, 100 * gradient, 100 * weight);
    EXPECT_NEAR(forward, 0, 0.2);
    EXPECT_NEAR(gradient, 0, 0.2);
    EXPECT_NEAR(weight, 0, 0.2);
  }
}

// lib/bench/measurements/simulator_errors.md says what is not modelled. A change of these errors must be noted there.
TEST(Experts, published_steps_are_predicted_roughly) {
  const auto rows = value_or_throw(published::read_rows(std::string(TRI_SOURCE_DIR) + "/configs/published/moe.csv"));
  const published::ErrorTable table = value_or_throw(published::error_table(rows));
  EXPECT_TRUE(table.skipped.empty());
  std::vector<double> errors;
  for (const published::RowError& row : table.rows) errors.push_back(row.comparison.error());
  fmt::print("{}", to_text(table));
  EXPECT_EQ(errors.size(), 6u);
  EXPECT_LT(published::summary_of(errors).mean, 0.26);
  EXPECT_LT(published::summary_of(errors).max, 0.58);
}

TEST(Experts, a_search_tries_their_divisors) {
  const Config config = value_or_throw(without_layout(parsed("qwen3_30b_a3b", {})));
  const auto found = [&](const PlanOptions& options) {
    std::set<int> degrees;
    for (const PlannedLayout& layout : value_or_throw(search_layouts(config, h100(), options)).best) {
      degrees.insert(layout.workload.ep);
      EXPECT_EQ(problem_of(layout.workload), "");
      EXPECT_EQ(with_planned(config, layout.workload).parallel.ep, layout.workload.ep);
    }
    return degrees;
  };
  EXPECT_GT(found({.ranks = 64, .keep = 200, .max_chunks = 1, .max_micro_batch = 1}).size(), 1u);
  EXPECT_EQ(found({.ranks = 64, .max_micro_batch = 1, .pinned = {.ep = 16}}), std::set{16});
  const auto refused = search_layouts(config, h100(), {.ranks = 64, .pinned = {.ep = 24}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("parallel.ep 24 does not divide"), std::string::npos);
}

TEST(Experts, a_simulation_states_what_it_assumes) {
  const auto config = value_or_throw(resolve_config(parsed("qwen3_30b_a3b", {}), 64));
  const Simulation simulation = value_or_throw(simulate(config, h100()));
  EXPECT_EQ(simulation.workload.ep, 8);
  EXPECT_NE(to_text(simulation).find("1.05 times the mean"), std::string::npos);
  EXPECT_NE(to_json(simulation).find("\"ep\":8"), std::string::npos);
  EXPECT_FALSE(simulation.memory_estimated);
  const auto muon = value_or_throw(resolve_config(parsed("qwen3_30b_a3b", {"optimizer.name=muon"}), 64));
  EXPECT_FALSE(simulate(muon, h100()));
}

}  // namespace
}  // namespace tri
