// The data of a run folder for the report and the live screen. If a file is absent, damaged or of another version, only
// its part is missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "lib/config/flat.h"
#include "lib/fault/events.h"
#include "lib/observe/metrics/metrics_reader.h"
#include "lib/observe/status/effective_time.h"
#include "lib/report/rank_heat.h"
#include "lib/report/rank_waits.h"

namespace tri {

inline constexpr int64_t kHeatBytes = 2'000'000;

// A failure, a hang, a decision about machines, or another event that a reader should know.
struct Incident {
  double time = 0;   // seconds since 1970
  int64_t step = 0;  // completed by then
  std::string kind;  // "failure", "hang", "stop", "gone", "not finite", or as in the event log
  std::string text;
  bool alarm = false;  // something went wrong; false: a decision, or an end on request
};

// A start of the run whose resolved config differs from that of the previous start.
struct ConfigChange {
  double time = 0;
  int start = 0;     // of those on record; the first is 0
  int64_t step = 0;  // complete before it
  std::string name, before, after;
};

// A rank that was found to be slower than others with the same work or, with `over`, no longer to be.
struct StragglerRecord {
  double time = 0;
  int64_t step = 0;
  int world_rank = -1;
  std::string text;
  double slowdown = 0;        // 0.1: by 10 %
  double lost_ms = kUnknown;  // per step, by the simulator
  bool over = false;
};

// A text that the run generated.
struct TextSample {
  int64_t step = 0;
  std::string text;
};

struct RunData {
  std::string dir, name;  // absolute; run.name, or the folder's
  RunMetrics metrics;
  std::vector<RunEvent> events;
  std::optional<EffectiveTime> time;
  std::vector<FlatField> config;            // resolved.yaml, else config.yaml
  std::vector<ConfigChange> changes;        // in the order of time
  std::vector<Incident> incidents;          // the same
  std::optional<RankHeat> heat;             // of ranks.h5
  std::vector<RankWaits> waits;             // of a dump, of recorded steps
  std::vector<StragglerRecord> stragglers;  // in the order of time
  std::vector<TextSample> samples;          // of log.txt, the newest last
  std::vector<std::string> remarks;         // messages about data that could not be read

  std::string field(std::string_view name) const;  // from `config`; "": absent
  const RunEvent* last_start() const;              // the newest kStart; null: none is recorded
};

// Reads a run. Fails with kUsage if `run_dir` is not a run's folder. `heat_bytes`: the maximum size of the times of all
// ranks.
Result<RunData> read_run_data(const std::string& run_dir, int64_t heat_bytes = kHeatBytes);

std::vector<Incident> incidents_of(const std::vector<RunEvent>& events, const std::optional<EffectiveTime>& time,
                                   const RunMetrics& metrics);

// What happened, in sentences: the state, failures and what they cost, slow ranks.
struct RunSentence {
  std::string text;
  bool alarm = false;
};
std::vector<RunSentence> run_story(const RunData& run);

// The facts about a run that a report shows first, most important first: the same for every run. Unknown values are "".
struct RunFact {
  std::string label, value;
};
std::vector<RunFact> run_facts(const RunData& run);

// Speed over the last steps that count: medians, which a few slow steps do not affect.
struct RecentSpeed {
  size_t steps = 0;
  double step_ms = kUnknown, tokens_per_s = kUnknown, mfu = kUnknown, imbalance = kUnknown;
  double tokens_low = kUnknown, tokens_high = kUnknown;
};
RecentSpeed recent_speed(const RunMetrics& metrics);

// Returns "1470 MHz, 690 W, 61 °C, 71.2 GiB in use" of rank 0's GPU in this step, with `between` its parts; "" if
// nothing is recorded.
std::string gpu_text(const StepRecord& step, std::string_view between = ", ");

}  // namespace tri
