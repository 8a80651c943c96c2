#include <algorithm>
#include <limits>
#include <map>

#include "io/base/format.h"
#include "lib/report/picture.h"

namespace tri {
namespace {

constexpr double kWidth = 960, kLeft = 66, kRight = 16, kTop = 44;
constexpr int64_t kManyActions = 4000;  // per step; above this number, each pixel column shows only the kind at its
                                        // middle
constexpr double kAction = 26, kLane = 6, kStage = kAction + 2 * kLane + 14;

// Returns the milliseconds between the axis marks: 1, 2 or 5 times a power of ten, for about ten marks.
double mark_distance(double all) {
  double distance = 1e-6;
  for (int i = 0; all / distance > 12; ++i) distance *= i % 3 == 1 ? 2.5 : 2;
  return distance;
}

class StepPicture {
 public:
  StepPicture(const std::vector<TimelineSegment>& segments, int step) : step_(step) {
    for (const TimelineSegment& segment : segments) {
      const TimelineSegment*& of = stages_[segment.rank_on("pp")];
      if (of == nullptr || segment.world_rank < of->world_rank) of = &segment;
    }
    for (const auto& [stage, segment] : stages_)
      for (const TimelineSpan& span : segment->spans) {
        if (span.step != step || !drawn(*segment, span)) continue;
        first_ = std::min(first_, span.begin + segment->clock.offset);
        last_ = std::max(last_, span.end + segment->clock.offset);
        actions_ += span.kind == SpanKind::kAction;
      }
    if (!empty()) last_ = std::max(last_, first_ + 1);  // the axis has a length even if nothing takes time
  }
  bool empty() const { return actions_ == 0; }

  std::string draw(const std::string& title) {
    const double height = kTop + kStage * static_cast<double>(stages_.size()) + 62;
    Picture picture(kWidth, height, title);
    picture.text(16, 26, title, "ink head");
    draw_axis(picture, height);
    double y = kTop;
    for (const auto& [stage, segment] : stages_) {
      picture.text(kLeft - 8, y + kAction / 2 + 4, fmt::format("stage {}", stage), "ink", "end");
      draw_stage(picture, *segment, y);
      y += kStage;
    }
    draw_legend(picture, height - 14);
    return picture.svg();
  }

 private:
  // Returns the span's lane: 0 for compute's actions, 2 for dp, -1 if it is not drawn.
  static int lane_of(const TimelineSegment& segment, const TimelineSpan& span) {
    if (span.kind == SpanKind::kAction) return 0;
    return span.kind == SpanKind::kOperation && segment.streams[span.stream] == "dp" ? 2 : -1;
  }
  static bool drawn(const TimelineSegment& segment, const TimelineSpan& span) { return lane_of(segment, span) >= 0; }

  double milliseconds(int64_t time) const { return static_cast<double>(time - first_) / 1e6; }
  double x_of(double ms) const { return kLeft + ms / milliseconds(last_) * (kWidth - kLeft - kRight); }
  double x_of(const TimelineSegment& segment, int64_t time) const {
    return x_of(milliseconds(std::clamp(time + segment.clock.offset, first_, last_)));
  }

  void draw_axis(Picture& picture, double height) const {
    const double bottom = height - 54, distance = mark_distance(milliseconds(last_));
    for (double ms = 0; ms <= milliseconds(last_); ms += distance) {
      picture.line(x_of(ms), kTop - 4, x_of(ms), bottom, "grid");
      picture.text(x_of(ms), bottom + 14, fmt::format("{:g}", ms), "faint small", "middle");
    }
    picture.text(kLeft - 8, bottom + 14, "ms", "faint small", "end");
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
      const auto column = [](double at) { return static_cast<size_t>(std::clamp(std::ceil(at - 0.5), 0.0, kWidth)); };
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
    std::vector<std::string_view> kinds_ = std::vector<std::string_view>(static_cast<size_t>(kWidth));
  };

  static std::string_view kind_of(const std::string& name, bool is_later) {
    if (name == "F") return is_later ? "forward later" : "forward";
    if (name == "B") return is_later ? "backward later" : "backward";
    return is_later ? "update later" : "update";
  }

  void draw_stage(Picture& picture, const TimelineSegment& segment, double y) const {
    const bool many = actions_ > kManyActions;
    const double pp_y = y + kAction + 5, dp_y = pp_y + kLane + 1;
    std::string pp_lane, dp_lane;
    Columns actions, pp_columns, dp_columns;
    picture.line(kLeft, y + kAction, kWidth - kRight, y + kAction, "line");
    for (const TimelineSpan& span : segment.spans) {
      const int lane = lane_of(segment, span);
      if (span.step != step_ || lane < 0) continue;
      const double x = x_of(segment, span.begin), width = x_of(segment, span.end) - x;
      const std::string& name = segment.names[span.name];
      if (lane == 2) {
        if (many)
          dp_columns.add(x, width, "dp");
        else
          add_to(dp_lane, x, dp_y, width);
        continue;
      }
      const std::string_view kind = kind_of(name, span.chunk > 0);
      if (many)
        actions.add(x, width, kind);
      else
        picture.rect(x, y, std::max(0.2, width - 0.6), kAction - 1, kind);
      const std::string number = fmt::format("{}", span.microbatch);
      if (!many && name != "update" && width > 4 + 6 * static_cast<double>(number.size()))
        picture.text(x + width / 2, y + kAction / 2 + 3.5, number, "on", "middle");
    }
    for (const TimelineTransfer& transfer : segment.transfers) {
      const std::string& channel = segment.channels[transfer.channel].name;
      const bool pp = channel.starts_with("pp"), dp = channel.starts_with("dp");
      if (transfer.step != step_ || (!pp && !dp)) continue;
      const double x = x_of(segment, transfer.joined), width = x_of(segment, transfer.completed) - x;
      if (many)
        (pp ? pp_columns : dp_columns).add(x, width, pp ? "pp" : "dp");
      else
        add_to(pp ? pp_lane : dp_lane, x, pp ? pp_y : dp_y, width);
    }
    actions.draw(picture, y, kAction - 1);
    pp_columns.draw(picture, pp_y - 2.5, 5);
    dp_columns.draw(picture, dp_y - 2.5, 5);
    if (!pp_lane.empty()) picture.path(pp_lane, "pp-line lane");
    if (!dp_lane.empty()) picture.path(dp_lane, "dp-line lane");
  }

  void draw_legend(Picture& picture, double y) const {
    double x = kLeft;
    for (const auto& [kind, words] : {std::pair{"forward", "forward, by microbatch"}, std::pair{"backward", "backward"},
                                      std::pair{"update", "update"}, std::pair{"pp", "pp transfers"},
                                      std::pair{"dp", "dp gathers and reductions"}}) {
      picture.rect(x, y - 9, 10, 10, kind);
      picture.text(x + 15, y, words, "ink");
      x += 32 + 6.2 * static_cast<double>(std::string_view(words).size());
    }
    picture.text(x, y, "dimmed: later chunks; gaps: bubble", "faint");
  }

  const int step_;
  std::map<int, const TimelineSegment*> stages_;
  int64_t first_ = std::numeric_limits<int64_t>::max(), last_ = std::numeric_limits<int64_t>::min();
  int64_t actions_ = 0;
};

}  // namespace

Result<std::string> step_picture(const std::vector<TimelineSegment>& segments, int step, const std::string& title) {
  StepPicture picture(segments, step);
  if (picture.empty()) return usage_error("the recording has no action of step {}", step);
  return picture.draw(title);
}

}  // namespace tri
