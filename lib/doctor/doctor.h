// A health check of the machines that a job's ranks stand on: measure, judge, repeat what was found, report.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/measurement.h"

namespace tri {

// Exit statuses of the doctor, beside those that every subcommand has.
inline constexpr ExitCode kSuspectStatus = ExitCode::kSuspect, kBadStatus = ExitCode::kBad;

struct DoctorOptions {
  Depth depth = Depth::kQuick;
  std::string storage_dir = ".";  // existing
  int repeats = 2;                // times that what was found is measured again before it counts
  double check_seconds = 60;      // a check that takes longer hangs: the job ends with kBadStatus and its name
  PlantedFaults faults;
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

// Collective. The whole report on rank 0; elsewhere its verdict alone.
DoctorReport run_doctor(const DoctorOptions& options, Job& job, Device& device);

// For people: findings, a line a check, a verdict.
std::string doctor_text(const DoctorReport& report);
// One object, in the shape that lib/doctor/README.md tells.
std::string doctor_json(const DoctorReport& report);

// 0, kSuspectStatus or kBadStatus.
int exit_status(Verdict verdict);

}  // namespace tri
