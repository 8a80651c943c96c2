#include "lib/simulate/schedule_rows.h"

#include <nlohmann/json.hpp>

#include "io/base/format.h"

namespace tri {
namespace {

struct Kind {
  Schedule schedule;
  int chunks;
};

std::vector<Kind> kinds_of(const Workload& w) {
  constexpr int kMostChunks = 8;
  const int of_stage = w.model.layers / w.pp;
  int most = 1;
  for (int chunks = 2; chunks <= kMostChunks; ++chunks)
    if (of_stage % chunks == 0) most = chunks;
  std::vector<Kind> kinds{{Schedule::k1F1B, 1}, {Schedule::kZbH1, 1}};
  if (of_stage % 2 == 0) kinds.insert(kinds.end(), {{Schedule::kZbV, 2}, {Schedule::kInterleaved, 2}});
  if (most > 2) kinds.push_back({Schedule::kInterleaved, most});
  return kinds;
}

ScheduleRow row_of(const Workload& w, const Cluster& cluster, Stragglers stragglers) {
  return {.schedule = w.schedule,
          .chunks = w.chunks,
          .recompute = w.recompute,
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
    w.layers_per_chunk.clear();
    if (w.model.layers % (w.pp * w.chunks) != 0 || !problem_of(w).empty()) continue;
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
    text += fmt::format("{:<12} {:>6}  {:<10}{:>8.3f} s{:>7.1f} %{:>8.3f} s{:>8.1f} GiB{}\n", enum_name(row.schedule),
                        row.chunks, enum_name(row.recompute), row.step.seconds,
                        100 * (rows.front().step.seconds / row.step.seconds - 1), row.step.parts.bubble,
                        row.memory_bytes / (int64_t{1} << 30),
                        !row.equal_memory ? ""
                        : row.fits        ? "  in the memory of 1f1b"
                                          : "  does not fit into the memory of 1f1b");
  return text;
}

std::string to_json(const std::vector<ScheduleRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScheduleRow& row : rows)
    list.push_back({{"schedule", enum_name(row.schedule)},
                    {"chunks", row.chunks},
                    {"recompute", enum_name(row.recompute)},
                    {"equal_memory", row.equal_memory},
                    {"fits", row.fits},
                    {"step_s", row.step.seconds},
                    {"bubble_s", row.step.parts.bubble},
                    {"memory_bytes", static_cast<int64_t>(row.memory_bytes)}});
  return list.dump() + "\n";
}

}  // namespace tri
