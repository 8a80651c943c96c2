// The doctor of an agent's node: what becomes of his verdict and of his words.
#include "lib/supervise/node_doctor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/base/format.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using Lines = std::vector<std::string>;

int status_of(NodeDoctor& doctor) {
  for (int i = 0; i < 2000 && doctor.status() < 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return doctor.status();
}

TEST(NodeDoctor, his_verdict_and_his_words_arrive_once) {
  const TemporaryFolder folder;
  const std::string program = folder / "doctor.sh", report = folder / "report";
  // Larger than a pipe holds: who writes it must not wait for anybody.
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
    doctor.start();
    EXPECT_EQ(status_of(doctor), 41);
    EXPECT_EQ(doctor.take_findings(), Lines{"doctor: bad: node07: GPU 3 is slow"});
    EXPECT_EQ(doctor.take_findings(), Lines{});
  }
  ::unsetenv("SLURM_STEP_ID");
}

TEST(NodeDoctor, one_that_cannot_be_started_says_so) {
  NodeDoctor doctor("/nonexistent/doctor");
  doctor.start();
  EXPECT_EQ(status_of(doctor), 127);
  EXPECT_EQ(doctor.take_findings(), Lines{});
}

TEST(NodeDoctor, a_report_that_is_none_has_no_findings) {
  for (const char* text : {"", "torn {", "[]", "{}", R"({"findings": 3})", R"({"findings": [3, {"text": 4}, {}]})"})
    EXPECT_EQ(doctor_findings(text), Lines{}) << text;
}

}  // namespace
}  // namespace tri
