// What `trireme data order` prints: samples, steps and trained shares by stage.
#include "lib/observe/status/order_report.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

Config config_of(const std::string& ramp) {
  Config c;
  c.run.steps = 10;
  c.model.seq_len = 10;
  c.data.batch_ramp = ramp;
  c.data.global_batch = ramp.empty() ? 4 : c.data.global_batch;
  return value_or_throw(resolve_config(c, 1));
}

OrderFields two_stages() {
  return {.seed = 1,
          .seq_len = 10,
          .sources = {{.path = "a", .tokens = 1001}, {.path = "b", .tokens = 1001, .trained = 250}},
          .stages = {{.end = 14, .sources = {0}, .weights = {1.0}}, {.end = 0, .sources = {1}, .weights = {1.0}}}};
}

TEST(OrderReport, stages_have_their_steps) {
  std::vector<StageShare> stages = stage_shares(config_of(""), two_stages());
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(std::pair(stages[0].first_step, stages[0].last_step), std::pair(int64_t{1}, int64_t{4}));
  EXPECT_EQ(std::pair(stages[1].first_step, stages[1].last_step), std::pair(int64_t{4}, int64_t{10}))
      << "step 4 has samples of both";
  stages = stage_shares(config_of("0:2 80:8"), two_stages());  // 2, 2, 2, 2, 8, ...
  EXPECT_EQ(std::pair(stages[0].first_step, stages[0].last_step), std::pair(int64_t{1}, int64_t{5}));
  EXPECT_EQ(std::pair(stages[1].first_step, stages[1].last_step), std::pair(int64_t{5}, int64_t{10}));
  EXPECT_NE(order_report(config_of(""), two_stages()).find("samples 0 to 14, steps 1 to 4\n"), std::string::npos);
}

TEST(OrderReport, names_stages_that_the_run_does_not_reach) {
  OrderFields fields = two_stages();
  EXPECT_EQ(order_report(config_of(""), fields).find("does not reach"), std::string::npos);
  fields.stages[0].end = 40;  // the samples of the run
  const std::string text = order_report(config_of(""), fields);
  EXPECT_TRUE(text.ends_with("stage 2: from 400 tokens on, which the run does not reach\n")) << text;
}

TEST(OrderReport, sources_with_a_mask_have_their_trained_share) {
  const std::string text = order_report(config_of(""), two_stages());
  EXPECT_NE(text.find("    all\n"), std::string::npos) << text;
  EXPECT_NE(text.find("   25.0 %\n"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(order_json(config_of(""), two_stages()));
  EXPECT_NEAR(json["stages"][1]["sources"][0]["trained_share"].get<double>(), 0.25, 1e-3);
  EXPECT_FALSE(json["stages"][0]["sources"][0].contains("trained_share"));
  OrderFields plain = two_stages();
  plain.sources[1].trained.reset();
  EXPECT_EQ(order_report(config_of(""), plain).find("trained"), std::string::npos);
}

}  // namespace
}  // namespace tri
