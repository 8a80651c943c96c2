#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>

#include "io/base/format.h"
#include "lib/observe/timeline/timeline_slices.h"
#include "lib/report/picture.h"

namespace tri {
namespace {

constexpr double kStepWidth = 960, kStepLeft = 66, kStepRight = 16, kStepTop = 44;
constexpr int64_t kManyActions = 4000;  // of a step; above this number, a column of pixels shows what is at its middle
constexpr double kAction = 26, kLane = 6, kGap = 15, kLegendRow = 18;
constexpr std::array<std::string_view, 4> kLanes{"tp", "pp", "dp", "ep"};  // of transfers, below the actions
constexpr size_t kTpLane = 0, kDpLane = 2, kEpLane = 3;

// Returns the milliseconds between the axis marks: 1, 2 or 5 times a power of ten, for about ten marks.
double mark_distance(double all) {
  double distance = 1e-6;
  for (int i = 0; all / distance > 12; ++i) distance *= i % 3 == 1 ? 2.5 : 2;
  return distance;
}

class StepPicture {
 public:
  StepPicture(const std::vector<TimelineSegment>& segments, int step)
      : step_(step), segments_(segments), rendezvous_(find_rendezvous(segments)) {
    for (size_t i = 0; i < segments.size(); ++i) {
      const auto [of, is_new] = stages_.try_emplace(segments[i].rank_on("pp"), i);
      if (!is_new && segments[i].world_rank < segments[of->second].world_rank) of->second = i;
    }
    for (const auto& [stage, at] : stages_)
      for (const TimelineSpan& span : segments[at].spans) {
        const TimelineSegment& segment = segments[at];
        if (span.step != step || !(span.kind == SpanKind::kAction || lane_of(segment, span))) continue;
        first_ = std::min(first_, span.begin + segment.clock.offset);
        last_ = std::max(last_, span.end + segment.clock.offset);
        actions_ += span.kind == SpanKind::kAction;
        if (lane_of(segment, span) == kEpLane) num_lanes_ = kLanes.size();
      }
    for (const auto& [stage, at] : stages_)
      for (const TimelineTransfer& transfer : segments[at].transfers)
        if (transfer.step == step && lane_of(segments[at].channels[transfer.channel].name) == kEpLane)
          num_lanes_ = kLanes.size();
    if (!empty()) last_ = std::max(last_, first_ + 1);  // the axis has a length even if nothing takes time
  }
  bool empty() const { return actions_ == 0; }

  std::string draw(const std::string& title) {
    const double stage_height = kAction + kLane * static_cast<double>(num_lanes_) + kGap;
    const double bottom = kStepTop + stage_height * static_cast<double>(stages_.size()) + 8;
    const std::vector<LegendEntry> legend = legend_of();
    Picture picture(kStepWidth, bottom + 54 + kLegendRow * legend.back().row, title);
    picture.text(16, 26, title, "ink head");
    draw_axis(picture, bottom);
    double y = kStepTop;
    for (const auto& [stage, at] : stages_) {
      picture.text(kStepLeft - 8, y + kAction / 2 + 4, fmt::format("stage {}", stage), "ink", "end");
      draw_stage(picture, segments_[at], rendezvous_[at], y);
      y += stage_height;
    }
    for (const LegendEntry& entry : legend) {
      const double at = bottom + 40 + kLegendRow * entry.row;
      if (!entry.kind.empty()) picture.rect(entry.x, at - 9, 10, 10, entry.kind);
      picture.text(entry.x + (entry.kind.empty() ? 0 : 15), at, entry.words, entry.kind.empty() ? "faint" : "ink");
    }
    return picture.svg();
  }

 private:
  // The lane of a span that is a transfer: operations of the dp stream and, in a simulation, exposed transfers.
  static std::optional<size_t> lane_of(const TimelineSegment& segment, const TimelineSpan& span) {
    if (span.kind != SpanKind::kOperation) return std::nullopt;
    if (segment.names[span.name] == "tp exposed") return kTpLane;
    if (segment.names[span.name] == "ep exposed") return kEpLane;
    return segment.streams[span.stream] == "dp" ? std::optional(kDpLane) : std::nullopt;
  }
  static std::optional<size_t> lane_of(const std::string& channel) {
    for (size_t lane = 0; lane < kLanes.size(); ++lane)
      if (channel.starts_with(kLanes[lane])) return lane;
    return channel.starts_with("experts") ? std::optional(kEpLane) : std::nullopt;
  }

  double milliseconds(int64_t time) const { return static_cast<double>(time - first_) / 1e6; }
  double x_of(double ms) const { return kStepLeft + ms / milliseconds(last_) * (kStepWidth - kStepLeft - kStepRight); }
  double x_of(const TimelineSegment& segment, int64_t time) const {
    return x_of(milliseconds(std::clamp(time + segment.clock.offset, first_, last_)));
  }

  void draw_axis(Picture& picture, double bottom) const {
    const double distance = mark_distance(milliseconds(last_));
    for (double ms = 0; ms <= milliseconds(last_); ms += distance) {
      picture.line(x_of(ms), kStepTop - 4, x_of(ms), bottom, "grid");
      picture.text(x_of(ms), bottom + 14, fmt::format("{:g}", ms), "faint small", "middle");
    }
    picture.text(kStepLeft - 8, bottom + 14, "ms", "faint small", "end");
  }

  // Adds a segment to a lane: a line at mid-height, as wide as its duration.
  static void add_to(std::string& lane, double x, double y, double width) {
    if (width > 0) lane += fmt::format("M{:.1f} {:.1f}h{:.1f}", x, y, std::max(width, 0.4));
  }

  // A row of many short spans: each pixel column shows the kind at its middle, so the picture's size does not grow with
  // the step's actions.
  class Columns {
   public:
    void add(double x, double width, std::string_view kind) {
      const auto column = [](double at) {
        return static_cast<size_t>(std::clamp(std::ceil(at - 0.5), 0.0, kStepWidth));
      };
      for (size_t i = column(x); i < column(x + width); ++i) kinds_[i] = kind;
    }
    void draw(Picture& picture, double y, double height) const {
      std::map<std::string_view, std::string> paths;
      for (size_t begin = 0; begin < kinds_.size();) {
        size_t end = begin + 1;
        while (end < kinds_.size() && kinds_[end] == kinds_[begin]) ++end;
        if (!kinds_[begin].empty())
          paths[kinds_[begin]] += fmt::format("M{} {:.1f}h{}v{:.1f}h-{}z", begin, y, end - begin, height, end - begin);
        begin = end;
      }
      for (const auto& [kind, path] : paths) picture.path(path, kind);
    }

   private:
    std::vector<std::string_view> kinds_ = std::vector<std::string_view>(static_cast<size_t>(kStepWidth));
  };

  static std::string_view kind_of(const std::string& name, bool is_later) {
    if (name == "F") return is_later ? "forward later" : "forward";
    if (name == "B") return is_later ? "backward later" : "backward";
    if (name == "W") return is_later ? "weight later" : "weight";
    return is_later ? "update later" : "update";
  }

  // Actions, in them the parts in which compute waits, and below them the transfers while data moves: a receive that
  // waits for its sender, or a collective for its last member, is no transfer yet.
  void draw_stage(Picture& picture, const TimelineSegment& segment, const std::vector<Rendezvous>& rendezvous,
                  double y) const {
    const bool many = actions_ > kManyActions;
    const auto lane_y = [&](size_t lane) { return y + kAction + 5 + (kLane + 1) * static_cast<double>(lane); };
    std::array<std::string, kLanes.size()> lanes;
    std::array<Columns, kLanes.size()> columns;
    const auto add_transfer = [&](size_t lane, int64_t begin, int64_t end) {
      const double x = x_of(segment, begin), width = x_of(segment, end) - x;
      many ? columns[lane].add(x, width, kLanes[lane]) : add_to(lanes[lane], x, lane_y(lane), width);
    };
    Columns actions;
    picture.line(kStepLeft, y + kAction, kStepWidth - kStepRight, y + kAction, "line");
    for (const TimelineSpan& span : segment.spans) {
      if (span.step != step_) continue;
      if (const auto lane = lane_of(segment, span)) add_transfer(*lane, span.begin, span.end);
      if (span.kind != SpanKind::kAction) continue;
      const double x = x_of(segment, span.begin), width = x_of(segment, span.end) - x;
      const std::string_view kind = kind_of(segment.names[span.name], span.chunk > 0);
      many ? actions.add(x, width, kind) : picture.rect(x, y, std::max(0.2, width - 0.6), kAction - 1, kind);
    }
    draw_waits(picture, segment, y);
    for (const TimelineSpan& span : segment.spans) {
      const double x = x_of(segment, span.begin), width = x_of(segment, span.end) - x;
      const std::string number = fmt::format("{}", span.microbatch);
      const bool named = span.step == step_ && span.kind == SpanKind::kAction && segment.names[span.name] != "update";
      if (!many && named && width > 4 + 6 * static_cast<double>(number.size()))
        picture.text(x + width / 2, y + kAction / 2 + 3.5, number, "on", "middle");
    }
    for (size_t i = 0; i < segment.transfers.size(); ++i) {
      const TimelineTransfer& transfer = segment.transfers[i];
      const auto lane = lane_of(segment.channels[transfer.channel].name);
      if (transfer.step != step_ || !lane) continue;
      const int64_t ready = rendezvous[i].ready - segment.clock.offset;
      add_transfer(*lane, std::clamp(ready, transfer.joined, transfer.completed), transfer.completed);
    }
    actions.draw(picture, y, kAction - 1);
    for (size_t lane = 0; lane < kLanes.size(); ++lane) {
      columns[lane].draw(picture, lane_y(lane) - 2.5, 5);
      if (!lanes[lane].empty()) picture.path(lanes[lane], fmt::format("{}-line lane", kLanes[lane]));
    }
  }

  // Pale, over the actions: their kind is still seen.
  void draw_waits(Picture& picture, const TimelineSegment& segment, double y) const {
    if (actions_ > kManyActions) return;
    std::string path;
    for (const TimelineSpan& span : segment.spans) {
      if (span.step != step_ || span.kind != SpanKind::kWait || span.stream != 0) continue;
      const double x = x_of(segment, span.begin), width = x_of(segment, span.end) - x;
      if (width > 0.3) path += fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", x, y, width, kAction - 1, width);
    }
    if (!path.empty()) picture.path(path, "wait");
  }

  struct LegendEntry {
    std::string kind, words;  // kind "": a remark
    double x = 0;
    int row = 0;
  };

  // As many rows as the entries need.
  std::vector<LegendEntry> legend_of() const {
    const bool splits = std::ranges::any_of(segments_, [](const TimelineSegment& segment) {
      return std::ranges::any_of(segment.spans, [&](const TimelineSpan& span) {
        return span.kind == SpanKind::kAction && segment.names[span.name] == "W";
      });
    });
    std::vector<LegendEntry> legend = {{"forward", "forward, by microbatch"}, {"backward", "backward"}};
    if (splits) legend.push_back({"weight", "weight gradients"});
    legend.insert(legend.end(), {{"update", "update"}, {"update wait", "compute waits"}, {"tp", "tp"}, {"pp", "pp"}});
    if (num_lanes_ > kEpLane) legend.push_back({"ep", "ep"});
    legend.insert(legend.end(), {{"dp", "dp transfers"}, {"", "dimmed: later chunks; gaps: bubble"}});
    double x = kStepLeft;
    int row = 0;
    for (LegendEntry& entry : legend) {
      const double width = (entry.kind.empty() ? 0 : 15) + 6.2 * static_cast<double>(entry.words.size());
      if (x + width > kStepWidth) x = kStepLeft, ++row;
      entry.x = x;
      entry.row = row;
      x += width + 17;
    }
    return legend;
  }

  const int step_;
  const std::vector<TimelineSegment>& segments_;
  const std::vector<std::vector<Rendezvous>> rendezvous_;  // [segment][transfer]
  std::map<int, size_t> stages_;                           // of each the segment that is drawn
  int64_t first_ = std::numeric_limits<int64_t>::max(), last_ = std::numeric_limits<int64_t>::min();
  int64_t actions_ = 0;
  size_t num_lanes_ = kEpLane;  // in use; only models with experts have that lane
};

}  // namespace

Result<std::string> step_picture(const std::vector<TimelineSegment>& segments, int step, const std::string& title) {
  StepPicture picture(segments, step);
  if (picture.empty())
    return usage_error("step {} cannot be drawn, since the recording contains none of its actions", step);
  return picture.draw(title);
}

}  // namespace tri
