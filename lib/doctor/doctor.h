// A health check of the machines of a job's ranks: measures, judges, repeats the checks with findings, and reports.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "io/base/mutex.h"
#include "lib/comm/job/job.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/measurement.h"

namespace tri {

// Exit statuses of the doctor, in addition to those of every subcommand.
inline constexpr ExitCode kSuspectStatus = ExitCode::kSuspect, kBadStatus = ExitCode::kBad;

struct DoctorOptions {
  Depth depth = Depth::kQuick;
  std::string storage_dir = ".";  // existing
  int repeats = 2;                // how often findings are measured again before they count
  double check_seconds = 60;      // a check that takes longer hangs: the job ends with kBadStatus and the check's name
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
    std::string skipped;  // why nothing was measured; "" if something was
  };
  std::vector<Row> checks;
  std::vector<Measurement> measurements;  // their `rule` is an index into `checks`
  std::vector<Finding> findings;
};

// Ends the job with kBadStatus if a check hangs: storage is unavailable, or a device or a peer does not respond. Counts
// the time of each check from its begin(), on a separate thread.
class CheckDeadline {
 public:
  CheckDeadline(double seconds, Job& job);
  ~CheckDeadline();
  CheckDeadline(const CheckDeadline&) = delete;
  CheckDeadline& operator=(const CheckDeadline&) = delete;

  void begin(const char* check);  // the check's name, which must outlive the object

 private:
  using Clock = std::chrono::steady_clock;
  void watch();

  const double seconds_;
  Job& job_;
  Mutex mutex_;
  ConditionVariable changed_;
  const char* check_ TRI_GUARDED_BY(mutex_) = nullptr;
  Clock::time_point until_ TRI_GUARDED_BY(mutex_){};
  bool end_ TRI_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Returns the whole report on rank 0, and only its verdict on the other ranks. Collective.
DoctorReport run_doctor(const DoctorOptions& options, Job& job, Device& device, CheckDeadline& deadline);

// The report as text: one line per check, the findings, the verdict.
std::string doctor_text(const DoctorReport& report);
// Returns one JSON object as described in app/JSON.md.
std::string doctor_json(const DoctorReport& report);

// 0, kSuspectStatus or kBadStatus.
int exit_status(Verdict verdict);

}  // namespace tri
