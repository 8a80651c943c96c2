// The report's JSON has the documented shape, and its text names the findings.
#include <gtest/gtest.h>

#include <limits>

#include "io/base/json.h"
#include "lib/doctor/doctor.h"
#include "lib/doctor/judge.h"

namespace tri {
namespace {

DoctorReport report_of_two_nodes() {
  DoctorReport report{.depth = Depth::kFull, .device = DeviceKind::kCuda, .seconds = 12.5};
  report.hosts = {"node06", "node07"};
  report.ranks = 16;
  Rule copies{.name = "peer_copies", .measures = "copies", .unit = "GB/s"};
  copies.cuda = {.bad_at = 1, .suspect_times = 1.3, .bad_times = 2};
  report.checks = {{.rule = copies, .verdict = Verdict::kBad},
                   {.rule = {.name = "locked_memory", .measures = "memory", .unit = "MiB"}},
                   {.rule = {.name = "infiniband", .measures = "ports"}, .skipped = "no InfiniBand"}};
  for (const double value : {380.0, 381.0, 112.0})
    report.measurements.push_back({.host = value < 200 ? "node07" : "node06", .part = "GPU 3 → GPU 5", .value = value});
  report.measurements.push_back({.rule = 1, .host = "node06", .value = std::numeric_limits<double>::infinity()});
  report.findings = judge(std::vector{copies}, DeviceKind::kCuda,
                          std::vector(report.measurements.begin(), report.measurements.begin() + 3));
  report.verdict = worst(report.findings);
  return report;
}

TEST(DoctorReport, json_has_its_documented_shape) {
  const auto json = nlohmann::json::parse(doctor_json(report_of_two_nodes()));
  EXPECT_EQ(json["verdict"], "bad");
  EXPECT_EQ(json["status"], 41);
  EXPECT_EQ(json["depth"], "full");
  EXPECT_EQ(json["device"], "cuda");
  EXPECT_EQ(json["seconds"], 12.5);
  EXPECT_EQ(json["ranks"], 16);
  ASSERT_EQ(json["nodes"].size(), 2u);
  EXPECT_EQ(json["nodes"][0]["verdict"], "healthy");
  EXPECT_EQ(json["nodes"][1]["host"], "node07");
  EXPECT_EQ(json["nodes"][1]["verdict"], "bad");
  ASSERT_EQ(json["findings"].size(), 1u);
  const auto& finding = json["findings"][0];
  EXPECT_EQ(finding["check"], "peer_copies");
  EXPECT_EQ(finding["host"], "node07");
  EXPECT_EQ(finding["part"], "GPU 3 → GPU 5");
  EXPECT_EQ(finding["value"], 112);
  EXPECT_EQ(finding["median"], 380);
  EXPECT_TRUE(finding["limit"].is_null());
  EXPECT_EQ(finding["text"], "node07: GPU 3 → GPU 5: 112 GB/s, but the median is 380 (peer_copies)");
  ASSERT_EQ(json["checks"].size(), 3u);
  EXPECT_EQ(json["checks"][0]["best"], 381);
  EXPECT_EQ(json["checks"][0]["median"], 380);
  EXPECT_EQ(json["checks"][0]["worst"], 112);
  EXPECT_EQ(json["checks"][0]["limits"]["bad_times"], 2);
  EXPECT_EQ(json["checks"][0]["better"], "higher");
  EXPECT_TRUE(json["checks"][0]["skipped"].is_null());
  EXPECT_EQ(json["checks"][1]["median"], "unlimited");
  EXPECT_EQ(json["checks"][2]["skipped"], "no InfiniBand");
  EXPECT_TRUE(json["checks"][2]["verdict"].is_null());
  ASSERT_EQ(json["measurements"].size(), 4u);
  EXPECT_EQ(json["measurements"][3]["check"], "locked_memory");
  EXPECT_EQ(json["measurements"][3]["value"], "unlimited");
  EXPECT_TRUE(json["measurements"][3]["problem"].is_null());
}

TEST(DoctorReport, text_names_findings_and_counts_checks) {
  const std::string text = doctor_text(report_of_two_nodes());
  EXPECT_NE(text.find("\nbad: node07: GPU 3 → GPU 5: 112 GB/s, but the median is 380 (peer_copies)\n"), text.npos)
      << text;
  EXPECT_NE(text.find("skipped: no InfiniBand"), text.npos) << text;
  EXPECT_NE(text.find("\nbad: 2 nodes, 16 ranks, 2 checks (full) in 12.5 s: 1 healthy, 0 suspect, 1 bad\n"), text.npos)
      << text;
}

TEST(DoctorReport, exit_statuses_are_not_those_of_other_ends) {
  EXPECT_EQ(exit_status(Verdict::kHealthy), 0);
  EXPECT_EQ(exit_status(Verdict::kSuspect), 40);
  EXPECT_EQ(exit_status(Verdict::kBad), 41);
}

}  // namespace
}  // namespace tri
