// The traffic and checkpoints that `check` reports, compared with arithmetic by hand.
#include "lib/observe/status/estimates.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lib/data/order.h"
#include "lib/engine/job_plan.h"
#include "lib/observe/status/check_report.h"
#include "lib/simulate/goodput.h"

namespace tri {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Config preset(const std::string& name, int ranks, const std::vector<std::string>& overrides = {}) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + name;
  const std::string text = value_or_throw(read_config_text(path));
  return value_or_throw(resolve_config(value_or_throw(parse_config(text, path, overrides)), ranks));
}

std::string report(const Config& config, int ranks) {
  return check_report(config, value_or_throw(plan_job(config, facts_on_paper(config, ranks))), ranks);
}

// 174.6e9 parameters over 64 ranks per replica, dp 4: three quarters of 4 bytes each per reduction, 50 GB/s.
TEST(Estimates, zero_2_of_the_175b_preset_sends_more_than_compute_hides) {
  const Config config = preset("megascale_175b.yaml", 256, {"parallel.zero=2"});
  const DpTraffic traffic = dp_traffic(config);
  EXPECT_TRUE(traffic.crosses_nodes);
  EXPECT_EQ(traffic.bytes_per_second, 50e9);
  EXPECT_NEAR(traffic.microbatch_seconds(), 0.164, 0.008);
  EXPECT_NEAR(traffic.compute_seconds, 0.067, 0.006);
  EXPECT_GT(traffic.step_bytes, 192 * traffic.microbatch_bytes);
  EXPECT_TRUE(traffic.exceeds_compute());
  EXPECT_TRUE(contains(report(config, 256), "WARNING: parallel.zero: 2 sends"));
}

TEST(Estimates, zero_1_reduces_once_a_step) {
  const Config config = preset("megascale_175b.yaml", 256);
  const DpTraffic traffic = dp_traffic(config);
  EXPECT_EQ(traffic.microbatch_bytes, 0);
  EXPECT_FALSE(traffic.exceeds_compute());
  const DpTraffic zero_2 = dp_traffic(preset("megascale_175b.yaml", 256, {"parallel.zero=2"}));
  EXPECT_EQ(2 * traffic.step_bytes, 3 * zero_2.microbatch_bytes);  // f32 gradients, bf16 parameters
  const std::string text = report(config, 256);
  EXPECT_TRUE(contains(text, "data parallel: a rank sends"));
  EXPECT_TRUE(contains(text, "at 50 GB/s (cluster.network_gb_per_s"));
  EXPECT_FALSE(contains(text, "WARNING"));
  const DpTraffic zero_0 = dp_traffic(preset("megascale_175b.yaml", 256, {"parallel.zero=0"}));
  EXPECT_EQ(3 * zero_0.step_bytes, 4 * traffic.step_bytes);
}

// tp ranks are neighbours: on a node of 8, tp 2 leaves 4 for a dp group, whose ring crosses nodes over 4 adapters.
TEST(Estimates, the_dp_group_s_bandwidth_is_its_slowest_part_s) {
  const auto with = [](int tp, int dp) {
    return dp_traffic(preset("gpt_1b3.yaml", tp * dp, {fmt::format("parallel.tp={}", tp)}));
  };
  EXPECT_EQ(with(1, 8).bytes_per_second, 400e9);
  EXPECT_FALSE(with(1, 8).crosses_nodes);
  EXPECT_EQ(with(2, 8).bytes_per_second, 200e9);
  EXPECT_TRUE(with(2, 8).crosses_nodes);
  EXPECT_EQ(with(8, 8).bytes_per_second, 50e9);
  EXPECT_EQ(with(1, 16).bytes_per_second, 400e9);
}

// The pair of ranks on a node sends over two adapters: the text explains how 50 GB/s become 100.
TEST(Estimates, check_says_how_a_bandwidth_comes_of_its_field) {
  EXPECT_TRUE(contains(report(preset("gpt_1b3.yaml", 32, {"parallel.tp=4"}), 32),
                       "at 100 GB/s (cluster.network_gb_per_s 50 for each of its 2 ranks on a node; the dp group spans "
                       "several nodes)"));
  EXPECT_TRUE(contains(report(preset("gpt_1b3.yaml", 8), 8), "at 400 GB/s (cluster.node_gb_per_s; "));
  // If links inside a node are slower than its adapters, they determine the speed.
  const Config slow = preset("gpt_1b3.yaml", 32, {"parallel.tp=4", "cluster.node_gb_per_s=60"});
  EXPECT_TRUE(contains(report(slow, 32), "at 60 GB/s (cluster.node_gb_per_s; the dp group spans several nodes)"));
}

const LayerTraffic& traffic_over(const std::vector<LayerTraffic>& all, const std::string& axis) {
  for (const LayerTraffic& traffic : all)
    if (traffic.axis == axis) return traffic;
  throw std::runtime_error("no traffic over " + axis);
}

// 16 ranks of tp 2 x cp 8, of which 4 cp ranks are on a node: keys and values of 16384 positions, 512 wide each.
TEST(Estimates, cp_sends_keys_values_and_their_gradients) {
  const Config config = preset("llama_3_8b_131k.yaml", 16);
  const LayerTraffic traffic = traffic_over(layer_traffic(config), "cp");
  const int64_t own = int64_t{16384} * 2 * 512 * 2, layers = 32, microbatches = 32;
  EXPECT_EQ(traffic.step_bytes, microbatches * layers * 3 * 7 * own);
  EXPECT_EQ(traffic.network_bytes, microbatches * layers * 3 * 4 * own);
  EXPECT_EQ(traffic.on_node, 4);
  EXPECT_NEAR(traffic.seconds, static_cast<double>(traffic.network_bytes) / 50e9, 1e-6);
  EXPECT_TRUE(contains(report(config, 16), "context parallel: a rank sends 672.00 GiB a step over cp 8"));
  EXPECT_EQ(layer_warning(config, traffic), "");  // 5 % of the step's compute
  const Config short_samples = preset("llama_3_8b_131k.yaml", 16, {"model.seq_len=8192"});
  EXPECT_TRUE(contains(report(short_samples, 16), "WARNING: parallel.cp: its groups of 8 ranks span nodes of 8"));
  EXPECT_TRUE(layer_traffic(preset("gpt_1b3.yaml", 8)).empty());
}

// With a window each of a rank's two chunks needs only the 4096 positions before it, of 7 x 16384 on other ranks.
TEST(Estimates, cp_sends_only_the_keys_that_a_window_reaches) {
  const auto bytes = [](const std::string& window) {
    const Config config = preset("llama_3_8b_131k.yaml", 16, {"model.window=" + window});
    return static_cast<double>(traffic_over(layer_traffic(config), "cp").step_bytes);
  };
  EXPECT_NEAR(bytes("4096") / bytes("0"), 2 * 4096 / (7 * 16384.0), 1e-9);
  EXPECT_LT(bytes("128"), bytes("4096"));
}

// Rows to their experts and back, forward, backward and in the repeated forward pass.
TEST(Estimates, ep_sends_rows_to_experts_and_back) {
  const auto with = [](const std::string& ep) {
    return preset("qwen3_30b_a3b.yaml", 64, {"parallel.recompute=full", "parallel.ep=" + ep});
  };
  const LayerTraffic inside = traffic_over(layer_traffic(with("8")), "ep");
  const int64_t rows = int64_t{4096} * 8 * 2048 * 2, layers = 48, microbatches = 16;
  EXPECT_EQ(inside.step_bytes, microbatches * layers * 6 * rows / 8 * 7);
  EXPECT_FALSE(inside.crosses_nodes());
  EXPECT_EQ(layer_warning(with("8"), inside), "");
  const LayerTraffic across = traffic_over(layer_traffic(with("16")), "ep");
  EXPECT_EQ(across.network_bytes, microbatches * layers * 6 * rows / 2);
  EXPECT_TRUE(contains(report(with("16"), 64), "WARNING: parallel.ep: its groups of 16 ranks span nodes of 8"));
  const Config config = with("16");
  const auto json = nlohmann::json::parse(
      check_json(config, value_or_throw(plan_job(config, facts_on_paper(config, 64))), nullptr, nullptr));
  EXPECT_EQ(json["ep_bytes_per_step"], across.step_bytes);
  EXPECT_EQ(json["warnings"].size(), 1U);
}

// 4096 tokens, 2048 wide, choose 2 experts each, so a rank needs a quarter of them. Copies bring all of them to 7
// others. FP8 is cast before it is sent, except for gradients by copies.
TEST(Estimates, ep_sends_what_its_transfers_send) {
  const auto rows = [](const std::string& transfers, const std::string& gemm) {
    const Config config = preset("qwen3_30b_a3b.yaml", 64,
                                 {"parallel.recompute=full", "parallel.ep=8", "model.experts_per_token=2",
                                  "parallel.ep_transfers=" + transfers, "precision.gemm=" + gemm});
    const double bytes = static_cast<double>(traffic_over(layer_traffic(config), "ep").step_bytes);
    return bytes / (16.0 * 48 * 4096 * 2048 * 7);  // bytes of a token's row for each other rank
  };
  EXPECT_NEAR(rows("collectives", "compute"), 6 * 2 / 4.0, 1e-9);
  EXPECT_NEAR(rows("copies", "compute"), 3 * 2 + 3 * 2 / 4.0, 1e-9);
  EXPECT_NEAR(rows("collectives", "fp8"), 3 * 1 / 4.0 + 3 * 2 / 4.0, 1e-9);
  EXPECT_NEAR(rows("copies", "fp8"), 2 * 1 + 2 + 3 * 2 / 4.0, 1e-9);
}

// The third of six stages has 14 of 24 layers.
TEST(Estimates, check_lists_the_memory_of_unequal_inner_stages) {
  const auto lists = [](const std::vector<std::string>& overrides) {
    return contains(report(preset("gpt_1b3.yaml", 6, overrides), 6), "memory of each rank of stage 2:");
  };
  EXPECT_TRUE(lists({"parallel.pp=6", "parallel.layers_per_chunk=2,2,14,2,2,2"}));
  EXPECT_TRUE(lists({"parallel.pp=6", "parallel.schedule=zb_h1"}));
  EXPECT_FALSE(lists({"parallel.pp=6", "parallel.schedule=1f1b"}));
}

// One stage has 14 of 24 layers, so the others wait for most of the step.
TEST(Estimates, the_bubble_is_that_of_the_layers_of_each_stage) {
  const auto bubble = [](const std::string& layers) {
    const Config config = preset("gpt_1b3.yaml", 6, {"parallel.pp=6", "parallel.schedule=1f1b", layers});
    const double found = simulated_bubble(config);
    const auto json = nlohmann::json::parse(
        check_json(config, value_or_throw(plan_job(config, facts_on_paper(config, 6))), nullptr, nullptr));
    EXPECT_EQ(json["bubble"], found);
    const bool even = layers == "parallel.layers_per_chunk=even";
    EXPECT_EQ(json["layout"].value("layers_per_chunk", std::vector<int>{}),
              even ? std::vector<int>{} : (std::vector{2, 2, 14, 2, 2, 2}));
    EXPECT_TRUE(contains(report(config, 6), fmt::format("the simulated bubble is {:.1f} %", 100 * found)));
    return found;
  };
  EXPECT_NEAR(bubble("parallel.layers_per_chunk=even"), 5.0 / 64, 1e-9);
  // Six ranks for the time of 14 layers, over the work of 24 and the head's, which is 2 to 3.
  const double uneven = bubble("parallel.layers_per_chunk=2,2,14,2,2,2");
  EXPECT_GT(uneven, 6 * 14 / 27.0 - 1);
  EXPECT_LT(uneven, 6 * 15 / 26.0 - 1 + 0.1);
}

// JSON and text describe the same config.
TEST(Estimates, check_warns_as_much_in_json_as_in_the_text) {
  const auto warnings = [](const Config& config, int ranks) {
    const JobPlan plan = value_or_throw(plan_job(config, facts_on_paper(config, ranks)));
    const std::string text = check_report(config, plan, ranks);
    std::vector<std::string> all = nlohmann::json::parse(check_json(config, plan, nullptr, nullptr))["warnings"];
    size_t lines = 0;
    for (size_t at = text.find("WARNING: "); at != std::string::npos; at = text.find("WARNING: ", at + 1)) ++lines;
    EXPECT_EQ(all.size(), lines);
    for (const std::string& warning : all) EXPECT_TRUE(contains(text, "WARNING: " + warning + "\n")) << warning;
    return all;
  };
  EXPECT_EQ(warnings(preset("megascale_175b.yaml", 256), 256).size(), 0U);
  const auto sends = warnings(preset("megascale_175b.yaml", 256, {"parallel.zero=2"}), 256);
  ASSERT_EQ(sends.size(), 1U);
  EXPECT_TRUE(contains(sends[0], "parallel.zero: 2 sends"));
  const auto loses = warnings(preset("quickstart.yaml", 8, {"checkpoint.every_minutes=0", "parallel.zero=2"}), 8);
  ASSERT_EQ(loses.size(), 1U);
  EXPECT_TRUE(contains(loses[0], "a crash loses all steps"));
}

// Writing continues alongside training: a checkpoint costs only the time for which it stops training, as in `simulate`.
TEST(Estimates, check_saves_as_often_as_simulate) {
  for (const int ranks : {256, 1024, 16384}) {
    const Config config = preset("megascale_175b.yaml", ranks, {"cluster.storage_gb_per_s=100"});
    const CheckpointEstimate estimate = checkpoint_estimate(config, ranks);
    Cluster cluster;
    cluster.faults.device_mtbf_hours = config.cluster.rank_mtbf_hours;
    EXPECT_EQ(estimate.interval_seconds, goodput(cluster, ranks, estimate.write_seconds).best_interval_s) << ranks;
  }
  // Not before the previous one has been written.
  const Config slow = preset("megascale_175b.yaml", 256, {"cluster.storage_gb_per_s=0.1"});
  EXPECT_EQ(checkpoint_estimate(slow, 256).interval_seconds, checkpoint_estimate(slow, 256).write_seconds);
  Cluster cluster;
  EXPECT_EQ(goodput(cluster, 256, 1e6).best_interval_s, 1e6);
}

TEST(Estimates, checkpoints_follow_young_and_daly) {
  const Config config = preset("megascale_175b.yaml", 256);
  const CheckpointEstimate estimate = checkpoint_estimate(config, 256);
  EXPECT_NEAR(static_cast<double>(estimate.bytes), 12 * 175e9, 0.01 * 12 * 175e9);  // weights and two moments in f32
  EXPECT_DOUBLE_EQ(estimate.write_seconds, static_cast<double>(estimate.bytes) / 5e9);
  EXPECT_DOUBLE_EQ(estimate.mtbf_seconds, 3600.0 * 50000 / 256);
  // Daly's addition to Young is small for stalls << MTBF.
  const double young = std::sqrt(2 * estimate.stall_seconds * estimate.mtbf_seconds);
  EXPECT_NEAR(estimate.interval_seconds, young, 1e-2 * young);
  EXPECT_NEAR(checkpoint_estimate(config, 4 * 256).interval_seconds, estimate.interval_seconds / 2, 1e-2 * young);
  const Config rounded = preset("megascale_175b.yaml", 256, {"optimizer.moments=bf16"});
  EXPECT_EQ(checkpoint_estimate(rounded, 256).bytes * 12, estimate.bytes * 8);
  const Config averaged = preset("megascale_175b.yaml", 256, {"optimizer.ema=0.999"});
  EXPECT_EQ(checkpoint_estimate(averaged, 256).bytes * 12, estimate.bytes * 16);
}

TEST(Estimates, check_says_when_nothing_or_too_little_or_too_much_is_saved) {
  const auto says = [](const std::vector<std::string>& overrides) {
    return report(preset("megascale_175b.yaml", 256, overrides), 256);
  };
  const std::string as_it_is = says({});
  EXPECT_TRUE(contains(as_it_is, "Young/Daly"));
  EXPECT_FALSE(contains(as_it_is, "WARNING")) << as_it_is;
  EXPECT_FALSE(contains(as_it_is, "hint")) << as_it_is;
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=0"}), "a crash loses all steps"));
  EXPECT_FALSE(contains(says({"checkpoint.every_minutes=0", "checkpoint.every=100"}), "a crash loses all steps"));
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=5"}), "less than the time in which a checkpoint is written"));
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=1000"}), "hint: checkpoint.every_minutes: 1000 loses"));
}

TEST(Estimates, check_states_the_memory_of_checkpoints_in_memory) {
  EXPECT_EQ(memory_checkpoint_estimate(preset("megascale_175b.yaml", 256)).node_bytes, 0);
  const Config config =
      value_or_throw(plan_on_paper(preset("megascale_175b.yaml", 256, {"checkpoint.memory_every=1"}), 256));
  const MemoryCheckpointEstimate estimate = memory_checkpoint_estimate(config);
  // Two segments of its own and two of its buddy, each with its part of the state.
  const double mean = 4 * static_cast<double>(checkpoint_estimate(config, 256).bytes) / 256;
  EXPECT_EQ(estimate.ranks, 8);
  EXPECT_GE(static_cast<double>(estimate.rank_bytes), 0.99 * mean);
  EXPECT_LE(static_cast<double>(estimate.rank_bytes), 1.5 * mean);
  EXPECT_EQ(estimate.node_bytes, 8 * estimate.rank_bytes) << "tp 8: a node has one stage";
  EXPECT_EQ(memory_checkpoint_warning(estimate, {}), "");
  EXPECT_EQ(memory_checkpoint_warning({}, {.shared = 0, .available = 0}), "");
  EXPECT_TRUE(contains(memory_checkpoint_warning(estimate, {.shared = 1, .available = 1}), "will not start"));
  EXPECT_TRUE(contains(report(config, 256), "checkpoints in memory every 1 step: "));
}

TEST(Estimates, checkpoints_in_memory_must_be_more_frequent_than_those_in_storage) {
  EXPECT_EQ(memory_every_warning({.every = 10}), "");
  EXPECT_EQ(memory_every_warning({.memory_every = 10}), "");
  EXPECT_EQ(memory_every_warning({.every = 10, .memory_every = 9}), "");
  EXPECT_TRUE(contains(memory_every_warning({.every = 10, .memory_every = 10}), "checkpoint.every 10"));
}

TEST(Estimates, many_epochs_are_warned_of_by_the_source_that_has_most) {
  Config config;
  config.run.steps = 1000;
  config.data.global_batch = 8;
  config.model.seq_len = 16;
  const auto warning = [&](int64_t a, int64_t b, double weight) {
    OrderFields order{.seq_len = 16, .sources = {{.path = "a", .tokens = a}}};
    if (b > 0) order.sources.push_back({.path = "b", .weight = weight, .tokens = b});
    return epochs_warning(config, order);
  };
  EXPECT_EQ(warning(16 * 8000 + 1, 0, 1), "");
  EXPECT_EQ(warning(16 * 801 + 1, 0, 1), "");
  EXPECT_TRUE(contains(warning(16 * 80 + 1, 0, 1), "1000 steps read each token of a 100 times:"))
      << warning(1281, 0, 1);
  EXPECT_EQ(warning(16 * 8000 + 1, 16 * 80 + 1, 0.1), "");
  EXPECT_TRUE(contains(warning(16 * 8000 + 1, 16 * 8 + 1, 1), "each token of b 500 times"));
  EXPECT_TRUE(warning(16 * 80 + 1, 0, 1).ends_with("; lower run.steps or add data"));
  config.run.tokens = 1000 * 8 * 16;
  EXPECT_TRUE(warning(16 * 80 + 1, 0, 1).starts_with("run.tokens: 1000 steps "));
  EXPECT_TRUE(warning(16 * 80 + 1, 0, 1).ends_with("; lower run.tokens or add data"));
}

TEST(Estimates, sizes_of_a_ramp_that_the_run_does_not_reach_are_named) {
  const auto says = [](const std::string& ramp) {
    Config config;
    config.run.steps = 3;
    config.model.seq_len = 16;
    config.data.batch_ramp = ramp;
    return report(value_or_throw(resolve_config(config, 1)), 1);
  };
  const std::string text = says("0:2 50:4 1k:8");
  EXPECT_TRUE(contains(text,
                       "  steps 3 to 3, from 64 tokens on: 4 samples per step in 4 microbatches\n"
                       "  from 1.01k tokens on, which the run does not reach: 8 samples per step\n"))
      << text;
  EXPECT_FALSE(contains(says("0:2 50:4"), "does not reach"));
}

TEST(Estimates, on_the_cpu_no_time_is_given_for_traffic) {
  const std::string text = report(preset("quickstart.yaml", 8, {"parallel.zero=2"}), 8);
  EXPECT_TRUE(contains(text, "data parallel: a rank sends"));
  EXPECT_FALSE(contains(text, "WARNING")) << text;
}

}  // namespace
}  // namespace tri
