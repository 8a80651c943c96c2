// What `check` says of traffic and checkpoints, against arithmetic by hand.
#include "lib/observe/estimates.h"

#include <gtest/gtest.h>

#include "lib/engine/job_plan.h"
#include "lib/observe/check_report.h"

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

// 174.6e9 parameters over 64 ranks a replica, dp 4: three quarters of 4 bytes each for a reduction, 50 GB/s.
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

// tp ranks are neighbours: of a node of 8, tp 2 leaves 4 to a dp group, whose ring crosses nodes over 4 adapters.
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

TEST(Estimates, checkpoints_follow_young_and_daly) {
  const Config config = preset("megascale_175b.yaml", 256);
  const CheckpointEstimate estimate = checkpoint_estimate(config, 256);
  EXPECT_NEAR(static_cast<double>(estimate.bytes), 12 * 175e9, 0.01 * 12 * 175e9);  // weights and two moments in f32
  EXPECT_DOUBLE_EQ(estimate.write_seconds, static_cast<double>(estimate.bytes) / 5e9);
  EXPECT_DOUBLE_EQ(estimate.mtbf_seconds, 3600.0 * 50000 / 256);
  EXPECT_NEAR(estimate.interval_seconds * estimate.interval_seconds, 2 * estimate.write_seconds * estimate.mtbf_seconds,
              1e-6 * estimate.interval_seconds * estimate.interval_seconds);
  EXPECT_NEAR(checkpoint_estimate(config, 4 * 256).interval_seconds, estimate.interval_seconds / 2, 1e-6);
  const Config rounded = preset("megascale_175b.yaml", 256, {"optimizer.moments=bf16"});
  EXPECT_EQ(checkpoint_estimate(rounded, 256).bytes * 12, estimate.bytes * 8);
}

TEST(Estimates, check_says_when_nothing_or_too_little_or_too_much_is_saved) {
  const auto says = [](const std::vector<std::string>& overrides) {
    return report(preset("megascale_175b.yaml", 256, overrides), 256);
  };
  const std::string as_it_is = says({});
  EXPECT_TRUE(contains(as_it_is, "Young/Daly"));
  EXPECT_FALSE(contains(as_it_is, "WARNING")) << as_it_is;
  EXPECT_FALSE(contains(as_it_is, "hint")) << as_it_is;
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=0"}), "a crash loses all of it"));
  EXPECT_FALSE(contains(says({"checkpoint.every_minutes=0", "checkpoint.every=100"}), "a crash loses all of it"));
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=5"}), "less than the writing of one takes"));
  EXPECT_TRUE(contains(says({"checkpoint.every_minutes=1000"}), "hint: checkpoint.every_minutes: 1000 loses"));
}

TEST(Estimates, on_the_cpu_no_time_is_given_for_traffic) {
  const std::string text = report(preset("quickstart.yaml", 8, {"parallel.zero=2"}), 8);
  EXPECT_TRUE(contains(text, "data parallel: a rank sends"));
  EXPECT_FALSE(contains(text, "WARNING")) << text;
}

}  // namespace
}  // namespace tri
