#include "lib/simulate/schedule_rows.h"

#include <algorithm>
#include <optional>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/config/layer_counts.h"
#include "lib/model/layer_division.h"

namespace tri {
namespace {

struct Kind {
  Schedule schedule;
  int chunks;
};

// Returns the layers of the virtual stages with this schedule and number of chunks, as Workload has them: even, unless
// the workload's are not or the layers do not divide evenly; none if there are fewer layers than virtual stages.
std::optional<std::vector<int>> layers_of_kind(const Workload& workload, const Kind& kind) {
  const int stages = workload.pp * kind.chunks;
  const bool is_own = workload.schedule == kind.schedule && workload.chunks == kind.chunks;
  if (workload.model.layers < stages) return std::nullopt;
  if (is_own) return workload.layers_per_chunk;
  if (workload.layers_per_chunk.empty() && workload.model.layers % stages == 0) return std::vector<int>{};
  std::vector<int> counts = balanced_layer_counts({.model = workload.model,
                                                   .layers = workload.layers(),
                                                   .schedule = kind.schedule,
                                                   .pp = workload.pp,
                                                   .chunks = kind.chunks,
                                                   .recompute = workload.recompute});
  if (std::ranges::count(counts, counts.front()) == stages) counts.clear();
  return counts;
}

std::vector<Kind> kinds_of(const Workload& w) {
  constexpr int kMostChunks = 8;
  const bool even = w.layers_per_chunk.empty() && w.model.layers % w.pp == 0;
  int most = 1;
  for (int chunks = 2; chunks <= kMostChunks && w.pp * chunks <= w.model.layers; ++chunks)
    if (!even || w.model.layers % (w.pp * chunks) == 0) most = chunks;
  std::vector<Kind> kinds{{Schedule::k1F1B, 1}, {Schedule::kZbH1, 1}};
  if (!even || w.model.layers % (2 * w.pp) == 0)
    kinds.insert(kinds.end(), {{Schedule::kZbV, 2}, {Schedule::kInterleaved, 2}});
  if (most > 2) kinds.push_back({Schedule::kInterleaved, most});
  return kinds;
}

ScheduleRow row_of(const Workload& w, const Cluster& cluster, Stragglers stragglers) {
  return {.schedule = w.schedule,
          .chunks = w.chunks,
          .recompute = w.recompute,
          .layers_per_chunk = w.layers_per_chunk,
          .step = predict_step(w, cluster, RingTimes(cluster), stragglers),
          .memory_bytes = estimate_memory(w, gpu_of(cluster)).total()};
}

}  // namespace

std::vector<ScheduleRow> schedule_rows(const Workload& workload, const Cluster& cluster, Stragglers stragglers) {
  TRI_REQUIRE(workload.pp > 1, "schedules of {} stage", workload.pp);
  std::vector<ScheduleRow> rows;
  for (const Kind& kind : kinds_of(workload)) {
    Workload w = workload;
    w.schedule = kind.schedule;
    w.chunks = kind.chunks;
    const auto layers = layers_of_kind(workload, kind);
    if (!layers) continue;
    w.layers_per_chunk = *layers;
    if (!problem_of(w).empty()) continue;
    rows.push_back(row_of(w, cluster, stragglers));
    const double room = rows.front().memory_bytes;
    if (rows.back().memory_bytes <= room) continue;
    bool fits = false;
    for (const Recompute recompute : {Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
      if (recompute <= workload.recompute || fits) continue;
      w.recompute = recompute;
      fits = estimate_memory(w, gpu_of(cluster)).total() <= room;
    }
    ScheduleRow row = row_of(w, cluster, stragglers);
    row.equal_memory = true;
    row.fits = fits;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string to_text(const std::vector<ScheduleRow>& rows) {
  std::string text = fmt::format("{:<12} {:>6}  {:<10}{:>10}{:>9}{:>10}{:>12}\n", "schedule", "chunks", "recompute",
                                 "step", "gain", "bubble", "memory");
  for (const ScheduleRow& row : rows)
    text += fmt::format("{:<12} {:>6}  {:<10}{:>8.3f} s{:>7.1f} %{:>8.3f} s{:>8.1f} GiB{}{}\n", enum_name(row.schedule),
                        row.chunks, enum_name(row.recompute), row.step.seconds,
                        100 * (rows.front().step.seconds / row.step.seconds - 1), row.step.parts.bubble,
                        row.memory_bytes / (int64_t{1} << 30),
                        !row.equal_memory ? ""
                        : row.fits        ? "  in the memory of 1f1b"
                                          : "  does not fit into the memory of 1f1b",
                        row.layers_per_chunk.empty() ? "" : "  layers " + layer_counts_text(row.layers_per_chunk));
  return text;
}

std::string to_json(const std::vector<ScheduleRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScheduleRow& row : rows) {
    list.push_back({{"schedule", enum_name(row.schedule)},
                    {"chunks", row.chunks},
                    {"recompute", enum_name(row.recompute)},
                    {"equal_memory", row.equal_memory},
                    {"fits", row.fits},
                    {"step_s", row.step.seconds},
                    {"bubble_s", row.step.parts.bubble},
                    {"memory_bytes", static_cast<int64_t>(row.memory_bytes)}});
    if (!row.layers_per_chunk.empty()) list.back()["layers_per_chunk"] = row.layers_per_chunk;
  }
  return list.dump() + "\n";
}

}  // namespace tri
