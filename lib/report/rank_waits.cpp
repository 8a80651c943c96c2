#include "lib/report/rank_waits.h"

#include <algorithm>
#include <filesystem>

#include "io/base/folder_entries.h"
#include "io/base/json.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/wait_graph.h"
#include "lib/observe/status/run_status.h"
#include "lib/observe/timeline/timeline_slices.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSegmentBytes = int64_t{512} << 20;
constexpr size_t kMostRecords = 4096;

void keep_most(RankWaits& all) {
  all.num_waits = static_cast<int64_t>(all.waits.size());
  if (all.waits.size() > kMostRankWaits) all.waits.resize(kMostRankWaits);
}

int64_t bytes_of_files(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code problem;
  for (const auto& entry : entries_of(folder, problem)) {
    const auto size = entry.file_size(problem);
    if (!problem) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Appends the other ranks for which an activity of a rank waits, directly or through a rendezvous.
void add_awaited(const WaitGraph& graph, int rank, int node, std::vector<int>& awaited) {
  const auto add = [&](int other) {
    if (other != rank && std::find(awaited.begin(), awaited.end(), other) == awaited.end()) awaited.push_back(other);
  };
  for (const int target : graph.edges().of(node)) {
    if (const int other = graph.rank_of(target); other >= 0) {
      add(other);
      continue;
    }
    for (const int member : graph.edges().of(target)) {
      if (awaited.size() >= kMostAwaited) return;
      if (const int other = graph.rank_of(member); other >= 0) add(other);
    }
  }
}

// Segments of earlier versions do not contain the sizes of the axes.
RankGrid grid_of(const std::vector<TimelineSegment>& segments) {
  RankGrid grid;
  const std::vector<AxisPlace>& axes = segments.front().place;  // slowest first
  for (auto on = axes.rbegin(); on != axes.rend(); ++on) {
    int size = std::max(1, on->size);
    for (const TimelineSegment& segment : segments) size = std::max(size, segment.rank_on(on->axis) + 1);
    grid.axes.push_back({on->axis, size});
  }
  return grid;
}

void add_steps(const std::string& run_dir, std::vector<RankWaits>& found, std::vector<std::string>& remarks) {
  const auto recorded = list_timelines(run_dir);
  if (recorded.empty()) return;
  const StepRange& steps = recorded.back();
  if (bytes_of_files(timeline_folder(run_dir, steps)) > kMostSegmentBytes) {
    remarks.push_back(
        fmt::format("steps {} to {} were recorded by too many ranks for this page; to see some of them, run `trireme "
                    "timeline {} --ranks FIRST:LAST`",
                    steps.first, steps.last, run_dir));
    return;
  }
  const auto segments = read_timeline(run_dir, steps, {});
  if (segments)
    found.push_back(waits_of_steps(segments.value(), steps));
  else
    remarks.push_back(segments.error().message);
}

void add_dump(const std::string& run_dir, std::vector<RankWaits>& found, std::vector<std::string>& remarks) {
  if (list_dumps(run_dir).empty()) return;
  const auto dump = read_hang_dump(run_dir, "");
  if (!dump) return;  // a dump is being written and has no report yet
  const std::string& folder = dump.value().folder;
  const std::string name = fs::path(folder).filename().string();
  const auto ranks = recorded_ranks(folder);
  if (ranks.size() > kMostRecords) {
    remarks.push_back(fmt::format(
        "dump {} has too many ranks for this page; to see its report, run `trireme status {} --hang`", name, run_dir));
    return;
  }
  const auto records = read_records(folder, ranks);
  const auto verdict = try_parse_json<nlohmann::json>(dump.value().json);
  if (records.empty() || !verdict.is_object()) {
    remarks.push_back(fmt::format("dump {} cannot be read, so its waits are not shown", name));
    return;
  }
  RankWaits waits = waits_of_dump(records);
  waits.title = "dump " + name;
  waits.headline = verdict.value("headline", "");
  for (const auto& suspect : verdict.value("culprits", nlohmann::json::array()))
    if (const int rank = suspect.is_object() ? suspect.value("rank", -1) : -1; rank >= 0)
      waits.suspects.push_back(rank);
  const auto for_suspect = [&](const RankWait& wait) {
    return std::find(waits.suspects.begin(), waits.suspects.end(), wait.awaited) != waits.suspects.end();
  };
  std::stable_partition(waits.waits.begin(), waits.waits.end(), for_suspect);
  found.push_back(std::move(waits));
}

}  // namespace

RankWaits waits_of_steps(const std::vector<TimelineSegment>& segments, const StepRange& steps) {
  RankWaits all{.title = fmt::format("steps {} to {}", steps.first, steps.last)};
  if (!segments.empty()) all.grid = grid_of(segments);
  TimelineSummary summary{.steps = steps};
  const TimelineSlices slices(segments, steps, summary);
  const auto count = static_cast<double>(std::max<int64_t>(1, steps.size()));
  for (const WaitForRank& wait : summary.waits)
    if (std::max(wait.waiter, wait.awaited) < all.grid.world_size())
      all.waits.push_back({wait.waiter, wait.awaited, wait.axis, wait.seconds / count});
  keep_most(all);
  return all;
}

RankWaits waits_of_dump(std::span<const RankRecord> records) {
  RankWaits all{.source = RankWaits::Source::kDump};
  if (records.empty()) return all;
  const WaitGraph graph(records);
  const RankRecord& any = records.front();
  if (any.grid.world_size() != graph.world_size()) return all;  // the record is too early to contain the grid
  all.grid = any.grid;
  for (int rank = 0; rank < graph.world_size(); ++rank) {
    if (graph.record(rank) == nullptr) continue;
    std::vector<int> awaited;
    // Excludes readers of tokens: they normally wait for consumers that have not taken the last tokens yet.
    for (const auto activity : {WaitGraph::kHost, WaitGraph::kDevice, WaitGraph::kWriter})
      add_awaited(graph, rank, graph.node(rank, activity), awaited);
    for (const int other : awaited) all.waits.push_back({rank, other, graph.awaited_text(rank, other)});
  }
  keep_most(all);
  return all;
}

std::vector<RankWaits> read_rank_waits(const std::string& run_dir, std::vector<std::string>& remarks) {
  std::vector<RankWaits> found;
  add_dump(run_dir, found, remarks);
  add_steps(run_dir, found, remarks);
  return found;
}

}  // namespace tri
