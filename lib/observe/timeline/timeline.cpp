#include "lib/observe/timeline/timeline.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/parallel.h"
#include "lib/observe/timeline/timeline_slices.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

std::string place(const TimelineSegment& segment) { return "[" + segment.place_text() + "]"; }

// Returns 3 for "rank_00003.piece", or -1 for another file.
int rank_in(const std::string& name) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".piece";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return -1;
  int rank = -1;
  std::from_chars(name.data() + kBegin.size(), name.data() + name.size() - kEnd.size(), rank);
  return rank;
}

}  // namespace

std::vector<StepRange> list_timelines(const std::string& run_dir) {
  constexpr std::string_view kBegin = "steps_";
  std::vector<StepRange> found;
  const auto names = list_folder(run_dir + "/trace");
  if (!names) return found;
  for (std::string name : names.value()) {
    if (!name.starts_with(kBegin)) continue;
    name.erase(0, kBegin.size());
    std::replace(name.begin(), name.end(), '_', ':');
    if (const auto steps = parse_step_range(name)) found.push_back(*steps);
  }
  std::sort(found.begin(), found.end(), [](const StepRange& a, const StepRange& b) {
    return std::tie(a.first, a.last) < std::tie(b.first, b.last);
  });
  return found;
}

Result<std::vector<TimelineSegment>> read_timeline(const std::string& run_dir, const StepRange& recorded,
                                                   const RankRange& ranks) {
  constexpr int64_t kGrain = 1;
  const std::string folder = timeline_folder(run_dir, recorded);
  const auto names = list_folder(folder);
  if (!names) return names.error();
  std::vector<int> known;
  for (const std::string& name : names.value())
    if (const int rank = rank_in(name); rank >= ranks.first && rank <= ranks.last) known.push_back(rank);
  std::sort(known.begin(), known.end());
  if (known.empty()) return file_error("{}: no steps of these ranks were recorded", folder);
  std::vector<Result<TimelineSegment>> read(known.size(), Error{});
  parallel_ranges(static_cast<int64_t>(known.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      read[static_cast<size_t>(i)] = read_segment(segment_path(folder, known[static_cast<size_t>(i)]));
  });
  std::vector<TimelineSegment> segments;
  std::string attempt;
  fs::file_time_type newest{};
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) return read[i].error();
    std::error_code absent;
    const auto time = fs::last_write_time(segment_path(folder, known[i]), absent);
    if (i == 0 || time > newest) {
      newest = time;
      attempt = read[i].value().attempt;
    }
  }
  for (auto& segment : read)
    if (segment.value().attempt == attempt) segments.push_back(std::move(segment).value());
  return segments;
}

Result<TimelineSummary> write_timeline(const std::vector<TimelineSegment>& segments, const StepRange& steps,
                                       const std::string& path) {
  TimelineSummary summary{.steps = steps, .path = path, .num_ranks = static_cast<int>(segments.size())};
  auto writer = PerfettoWriter::create(path);
  if (!writer) return writer.error();
  std::set<std::string> hosts;
  std::vector<std::vector<uint64_t>> tracks;  // [segment][stream]
  int64_t errors[2] = {0, 0};                 // the two largest
  for (const TimelineSegment& segment : segments) {
    hosts.insert(segment.host);
    summary.lost_marks += segment.lost_marks;
    const int64_t error = segment.clock_error();
    if (error > errors[0])
      errors[1] = std::exchange(errors[0], error);
    else
      errors[1] = std::max(errors[1], error);
    // For Perfetto process 0 is the kernel's idle process.
    const uint64_t process = writer.value().add_process(
        segment.world_rank + 1, fmt::format("rank {} {} {}", segment.world_rank, place(segment), segment.host),
        {fmt::format("clock +- {:.1f} us", static_cast<double>(error) * 1e-3),
         segment.gpu.empty() ? "cpu" : segment.gpu});
    auto& of_segment = tracks.emplace_back();
    for (size_t stream = 0; stream < segment.streams.size(); ++stream)
      of_segment.push_back(writer.value().add_track(process, static_cast<int>(stream), segment.streams[stream]));
  }
  summary.num_hosts = static_cast<int>(hosts.size());
  summary.clock_error = static_cast<double>(errors[0] + errors[1]) * 1e-9;
  TimelineSlices slices(segments, steps, summary);
  slices.write(tracks, writer.value());
  summary.bytes = writer.value().bytes();
  if (auto written = writer.value().commit(); !written) return written.error();
  return summary;
}

std::string timeline_text(const TimelineSummary& s, const std::vector<TimelineSegment>& segments) {
  constexpr size_t kMostWaits = 12;
  const auto steps = static_cast<double>(s.steps.size());
  const bool all = segments.empty() || s.num_ranks == segments[0].world_size;
  std::map<int, std::string> places;
  for (const TimelineSegment& segment : segments) places[segment.world_rank] = place(segment);
  std::string text =
      fmt::format("steps {} to {} of {} on {}: {} ({}, {} slices, {} flows)\n", s.steps.first, s.steps.last,
                  all ? counted(s.num_ranks, "rank")
                      : fmt::format("{} of {}", s.num_ranks, counted(segments[0].world_size, "rank")),
                  counted(s.num_hosts, "host"), s.path, format_bytes(s.bytes),
                  format_count(static_cast<double>(s.num_slices)), format_count(static_cast<double>(s.num_flows)));
  text += fmt::format("the clocks of two ranks differ by at most {:.1f} us\n", s.clock_error * 1e6);
  if (s.num_early > 0)
    text += fmt::format("the clocks have drifted; transfers that arrive before they are sent: {}\n", s.num_early);
  if (s.num_unmatched > 0)
    text +=
        fmt::format("transfers without a flow arrow, since one of their ranks is not included: {}\n", s.num_unmatched);
  if (s.lost_marks > 0)
    text +=
        fmt::format("timeline marks that did not fit into memory and are missing at the end: {}; record fewer steps\n",
                    s.lost_marks);
  if (s.waits.empty()) return text + "no rank's compute waited for another rank\n";
  text += fmt::format("waits of compute for other ranks, longest first{}:\n",
                      s.waits.size() > kMostWaits ? fmt::format(" ({} of {})", kMostWaits, s.waits.size()) : "");
  for (size_t i = 0; i < std::min(kMostWaits, s.waits.size()); ++i) {
    const WaitForRank& wait = s.waits[i];
    const double ms = 1e3 * wait.seconds / steps;
    text += fmt::format("  {:>7.{}f} ms per step  rank {} {} waits for rank {} {}  ({}, {:.1f} times)\n", ms,
                        ms < 1     ? 3
                        : ms < 100 ? 1
                                   : 0,
                        wait.waiter, places[wait.waiter], wait.awaited, places[wait.awaited], wait.axis,
                        static_cast<double>(wait.count) / steps);
  }
  return text + "open the file in https://ui.perfetto.dev\n";
}

}  // namespace tri
