// The doctor on an agent's node: what happens to its verdict and its report.
#include "lib/supervise/node_doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include "io/base/format.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using Lines = std::vector<std::string>;

int status_of(NodeDoctor& doctor) {
  for (int i = 0; i < 30'000 && doctor.status() < 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return doctor.status();
}

TEST(NodeDoctor, its_verdict_and_its_message_arrive_once) {
  const TemporaryFolder folder;
  const std::string program = folder / "doctor.sh", report = folder / "report";
  // Larger than a pipe's buffer: its writer must not wait for a reader.
  std::ofstream(report) << R"({"filler": ")" << std::string(200000, 'x')
                        << R"(", "findings": [{"verdict": "bad", "text": "node07: GPU 3 is slow"}]})";
  std::ofstream(program) << fmt::format(
      "#!/bin/sh\n[ \"$*\" = 'doctor --json --check-seconds 40' ] || exit 2\n"
      "[ -z \"$SLURM_STEP_ID\" ] || exit 3\ncat {}\nexit 41\n",
      report);
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ::setenv("SLURM_STEP_ID", "1", 1);
  NodeDoctor doctor(program);
  EXPECT_EQ(doctor.status(), -1);
  for (int time = 0; time < 2; ++time) {
    doctor.start(60);
    EXPECT_EQ(status_of(doctor), 41);
    EXPECT_EQ(doctor.take_findings(), Lines{"doctor: bad: node07: GPU 3 is slow"});
    EXPECT_EQ(doctor.take_findings(), Lines{});
  }
  ::unsetenv("SLURM_STEP_ID");
}

// One process examines the node and its first GPU, one more process each further GPU; the worst result counts.
TEST(NodeDoctor, looks_at_all_gpus_of_the_node) {
  const TemporaryFolder folder;
  const std::string program = folder / "doctor.sh";
  std::ofstream(program) << R"(#!/bin/sh
case $CUDA_VISIBLE_DEVICES in
5,6,7) [ "$*" = 'doctor --json --check-seconds 40' ] && text=node status=0 ;;
6) text=slow status=40 ;;
7) text=fine status=0 ;;
esac
[ "$text" = node ] || case "$*" in *'40 --only gpu_clock,gpu_throttling') ;; *) exit 3 ;; esac
echo "{\"findings\": [{\"verdict\": \"suspect\", \"text\": \"$text\"}]}"
exit $status
)";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ::setenv("CUDA_VISIBLE_DEVICES", "5,6,7", 1);
  NodeDoctor doctor(program);
  doctor.start(60, other_gpus("5,6,7", 8));
  EXPECT_EQ(status_of(doctor), 40);
  Lines found = doctor.take_findings();
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (Lines{"doctor: suspect: fine", "doctor: suspect: node", "doctor: suspect: slow"}));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(NodeDoctor, knows_the_gpus_of_its_job) {
  EXPECT_EQ(other_gpus(nullptr, 0), Lines{});
  EXPECT_EQ(other_gpus(nullptr, 3), (Lines{"1", "2"}));
  EXPECT_EQ(other_gpus("4,GPU-5e,6", 8), (Lines{"GPU-5e", "6"}));
  for (const char* none : {"", "-1", "3"}) EXPECT_EQ(other_gpus(none, 8), Lines{}) << none;
}

TEST(NodeDoctor, a_check_that_hangs_ends_before_the_doctors_timeout) {
  for (const auto& [timeout, seconds] : {std::pair(60.0, 40), std::pair(30.0, 20), std::pair(900.0, 600),
                                         std::pair(2.0, 1), std::pair(0.0, 1), std::pair(1e300, 57600)})
    EXPECT_EQ(check_seconds(timeout), seconds) << timeout;
}

TEST(NodeDoctor, the_worst_of_its_looks_counts) {
  for (const auto& [a, b, worse] : {std::tuple(0, 0, 0), std::tuple(0, 4, 4), std::tuple(4, 40, 40),
                                    std::tuple(41, 40, 41), std::tuple(127, 41, 41)}) {
    EXPECT_EQ(worse_status(a, b), worse);
    EXPECT_EQ(worse_status(b, a), worse);
  }
}

TEST(NodeDoctor, one_that_cannot_be_started_says_so) {
  NodeDoctor doctor("/nonexistent/doctor");
  doctor.start(60);
  EXPECT_EQ(status_of(doctor), 127);
  EXPECT_EQ(doctor.take_findings(), Lines{});
}

TEST(NodeDoctor, a_report_that_is_none_has_no_findings) {
  for (const char* text : {"", "torn {", "[]", "{}", R"({"findings": 3})", R"({"findings": [3, {"text": 4}, {}]})"})
    EXPECT_EQ(doctor_findings(text), Lines{}) << text;
}

}  // namespace
}  // namespace tri
