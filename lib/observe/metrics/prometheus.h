// A run's figures in Prometheus' text format: base units; counters end in _total. Counters count from this start of the
// run, so a step repeated after a restart counts again; trireme_step is the run's own count.
// https://prometheus.io/docs/instrumenting/exposition_formats
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lib/observe/metrics/expert_balance.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/metrics/step_times.h"

namespace tri {

struct PrometheusFigures {
  std::vector<std::pair<std::string, std::string>> labels;  // of trireme_run_info: names and values
  int64_t steps_of_run = 0;
  int64_t memory_bytes = 0;  // of rank 0's arena
  StepMetrics last;          // step 0: none yet
  double last_time = 0;      // end of that step, seconds since 1970
  double validation_loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::pair<std::string, double>> validation_losses;  // of the files of data.validation, by name
  std::vector<ExpertBalance> experts;                             // of the last step, by layer with experts
  // since this start of the run
  int64_t steps = 0, tokens = 0, data_bytes = 0, not_finite_steps = 0, checkpoints = 0;
  std::array<double, StepTimes::kKinds> seconds{};  // of its steps, by StepTimes::names()
  // of the last published checkpoint; 0: none
  int64_t checkpoint_step = 0, checkpoint_bytes = 0;
  double checkpoint_seconds = 0, checkpoint_stall_seconds = 0;
};

inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

std::string prometheus_text(const PrometheusFigures& figures);

}  // namespace tri
