// The balance of experts: its figures, its line of metrics.jsonl, its warning.
#include "lib/observe/status/expert_report.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include "lib/observe/metrics/metrics_reader.h"

namespace tri {
namespace {

TEST(ExpertReport, balance_of_known_loads) {
  const std::vector<float> equal{7, 7, 7, 7}, one{0, 8, 0, 0}, half{4, 4, 0, 0}, none{0, 0, 0, 0};
  EXPECT_DOUBLE_EQ(balance_of(3, equal).max_load, 1);
  EXPECT_NEAR(balance_of(3, equal).entropy, 1, 1e-12);
  EXPECT_EQ(balance_of(3, equal).dead, 0);
  EXPECT_EQ(balance_of(3, equal).layer, 3);
  EXPECT_DOUBLE_EQ(balance_of(0, one).max_load, 4);
  EXPECT_EQ(balance_of(0, one).dead, 3);
  EXPECT_EQ(balance_of(0, one).entropy, 0);
  EXPECT_NEAR(balance_of(0, half).entropy, 0.5, 1e-12);
  EXPECT_EQ(balance_of(0, none).dead, 4);
  EXPECT_EQ(balance_of(0, none).max_load, 0);
}

TEST(ExpertReport, the_worst_layers_are_named) {
  const std::vector<ExpertBalance> layers{{.layer = 1, .max_load = 1.5, .dead = 0, .entropy = 0.9},
                                          {.layer = 2, .max_load = 1.25, .dead = 2, .entropy = 0.5},
                                          {.layer = 3, .max_load = 2.5, .dead = 1, .entropy = 0.75}};
  EXPECT_EQ(balance_text(worst_of(layers)),
            "fullest expert 2.50 x the mean (layer 3), 3 dead (in 2 layers), lowest entropy 0.500 (layer 2)");
  EXPECT_EQ(balance_text(worst_of(std::span(layers).first(1))),
            "fullest expert 1.50 x the mean (layer 1), none dead, lowest entropy 0.900 (layer 1)");
}

TEST(ExpertReport, the_line_of_metrics_can_be_read_again) {
  Config config;
  config.model.dense_layers = 1;
  const std::vector<RouterNumbers> layers{{.load = {1, 9999, 5000, 5000}, .aux_loss = 0.5f, .z_loss = 0.25f},
                                          {.load = {3, 0, 0, 1}}};
  const std::string line = expert_json(7, config, layers);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["experts"]["layers"][0]["aux_loss"], 0.5);
  EXPECT_EQ(json["experts"]["layers"][0]["z_loss"], 0.25);
  const MetricsLine read = read_metrics_line(line);
  const auto* record = std::get_if<ExpertRecord>(&read);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->step, 7);
  ASSERT_EQ(record->layers.size(), 2u);
  EXPECT_EQ(record->layers[1].layer, 2);
  EXPECT_EQ(record->layers[1].max_load, 3);
  EXPECT_EQ(record->layers[1].dead, 2);
  EXPECT_EQ(record->loads[0], (std::vector<uint16_t>{1, 200, 100, 100})) << "an expert with a row is not dead";
  EXPECT_EQ(record->loads[1], (std::vector<uint16_t>{300, 0, 0, 100}));
}

TEST(ExpertReport, records_after_a_restart_replace_those_that_were_lost) {
  const auto line = [](int64_t step, float load) {
    return expert_json(step, Config{}, std::vector<RouterNumbers>{{.load = {1, load}}});
  };
  RunMetrics metrics;
  metrics.take(line(100, 1));
  metrics.take(line(200, 1));
  metrics.take(R"({"restart":1,"step":150,"lost_steps":50,"time":1})");
  ASSERT_EQ(metrics.experts.size(), 1u);
  metrics.take(line(200, 3));
  ASSERT_EQ(metrics.experts.size(), 2u);
  EXPECT_EQ(metrics.experts.back().layers[0].max_load, 1.5);
  metrics.take(R"({"experts":{"step":300,"layers":"none"}})");
  EXPECT_EQ(metrics.experts.size(), 2u);
}

TEST(ExpertReport, warns_of_layers_that_stay_badly_balanced) {
  std::vector<ExpertBalance> layers{{.layer = 4, .max_load = ExpertWatch::kMostLoad}, {.layer = 5, .dead = 2}};
  ExpertWatch watch;
  for (int64_t step = 1; step < ExpertWatch::kSteps; ++step) EXPECT_EQ(watch.take(layers), "") << step;
  EXPECT_EQ(watch.take(layers),
            "experts: layer 5 had dead experts (2 now) or a load above 3 x the mean (0.0 now) in the last 50 steps "
            "(in 1 of 2 layers); raise model.aux_loss or, with a sigmoid router, model.router_bias_rate");
  layers[1].dead = 0;
  EXPECT_EQ(watch.take(layers), "");
  layers[0].max_load = 4;
  for (int64_t step = 1; step < ExpertWatch::kSteps; ++step) EXPECT_EQ(watch.take(layers), "") << step;
  EXPECT_NE(watch.take(layers), "");
}

}  // namespace
}  // namespace tri
