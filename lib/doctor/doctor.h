// A health check of the machines that a job's ranks stand on: measure, judge, repeat what was found, report.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/job.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/measurement.h"

namespace tri {

// Exit statuses of the doctor, in addition to those that every subcommand has.
inline constexpr ExitCode kSuspectStatus = ExitCode::kSuspect, kBadStatus = ExitCode::kBad;

struct DoctorOptions {
  Depth depth = Depth::kQuick;
  std::string storage_dir = ".";  // existing
  int repeats = 2;                // times that what was found is measured again before it counts
  double check_seconds = 60;      // a check that takes longer hangs: the job ends with kBadStatus and its name
  std::vector<std::string> only;  // names of the checks to run; empty: all
};

struct DoctorReport {
  Verdict verdict = Verdict::kHealthy;
  Depth depth = Depth::kQuick;
  DeviceKind device = DeviceKind::kCpu;
  double seconds = 0;
  std::vector<std::string> hosts;  // nodes, in the order of their first ranks
  int ranks = 0;
  struct Row {
    Rule rule;
    Verdict verdict = Verdict::kHealthy;
    std::string skipped;  // why nothing was measured; "": something was
  };
  std::vector<Row> checks;
  std::vector<Measurement> measurements;  // their `rule` counts `checks`
  std::vector<Finding> findings;
};

// Ends the job with kBadStatus where a check hangs: storage that is away, a device that does not answer, a peer that
// never comes. Counts from begin() on, each check again, on a thread of its own.
class CheckDeadline {
 public:
  CheckDeadline(double seconds, Job& job);
  ~CheckDeadline();
  CheckDeadline(const CheckDeadline&) = delete;
  CheckDeadline& operator=(const CheckDeadline&) = delete;

  void begin(const char* check);  // its name, which outlives it

 private:
  using Clock = std::chrono::steady_clock;
  void watch();

  const double seconds_;
  Job& job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const char* check_ = nullptr;
  Clock::time_point until_{};
  bool end_ = false;
  std::thread thread_;
};

// Collective. The whole report on rank 0; elsewhere its verdict alone.
DoctorReport run_doctor(const DoctorOptions& options, Job& job, Device& device, CheckDeadline& deadline);

// For people: findings, a line a check, a verdict.
std::string doctor_text(const DoctorReport& report);
// One JSON object, in the shape of app/JSON.md.
std::string doctor_json(const DoctorReport& report);

// 0, kSuspectStatus or kBadStatus.
int exit_status(Verdict verdict);

}  // namespace tri
