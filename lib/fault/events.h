// The event log, run.dir/events.jsonl: a run's starts, spans of time, failures, hangs and ends, one JSON object per
// line. Any rank of any node appends; lines are never changed. The last line of a writer that was killed may be
// incomplete; readers skip it.
//
//   {"time":1763812345.678,"attempt":"...","job":"4711","kind":"failure","rank":13,"host":"node07","text":"...",
//    "fields":{"code":4,"gpu":"0000:18:00.0","consequence":false}}
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/base/enum_names.h"
#include "io/base/error.h"
#include "lib/comm/job/job.h"

namespace tri {

enum class RunEventKind {
  kBegin,  // an attempt holds its run folder; fields: began (its processes' start, seconds since 1970); submitted and
  // allocated (of its job, seconds since 1970), if the scheduler reported it; boot (of its machine) and uptime (the
  // monotonic clock's seconds at `began`)
  kStart,  // of an attempt's steps; fields: ranks, step (done before it), steps (of the run), metrics_bytes (length of
           // metrics.jsonl: what follows is this attempt's), startup.PHASE (seconds of each phase since `began`),
           // version (of the executable); with checkpoint.memory_every: from ("memory", "buddy": in part from copies of
           // other nodes, "storage", "nothing"), from_attempt (which wrote that), own_ranks and buddy_ranks (how many
  // ranks' state came from where), memory_why (why memory was not used); before.SECTION.KEY and after.SECTION.KEY
  // (against the start before)
  kSpan,     // of time that was no step, and ends now; fields: what (a category of lib/observe/status/effective_time.h,
             // such as "checkpoint" or "diagnosis"), seconds, step (done before it)
  kFailure,  // of `rank`; fields: code, consequence; gpu, if there is one; seen_by, if another rank reported the
             // failure; step, if loss or gradients were not finite (`rank` is -1 if no rank is known)
  kHang,     // the watchdog has dumped the job, and ends it unless progress resumes; `text`: the headline, `rank`: the
             // first suspect; fields: kind, dump, began (seconds since 1970: the time of the last progress)
  kEnd,      // of an attempt that ended without an error; fields: code, step (the last that was begun); `text`: its
             // last message, if any
  kStraggler,  // `rank` (of `host`) is slower than the ranks that do the same work; fields: slowdown (0.1: by 10 %),
  // windows, step, gpu, doctor (slower by 10 % for long: its machine should be examined), lost_ms (of
  // each step, by the simulator); over: no longer
  kDrift,  // a step takes longer than at first, or the loss or the gradient norm has grown; fields: quantity, growth
           // (0.03: by 3 %), since (a step), step; part: of the step, which grew the most
  // Written by the driver of a supervised run (lib/supervise).
  kAttemptStart,  // fields: number, nodes ("node1,node2"), checkpoint (its step)
  kAttemptEnd,  // `text`: of its cause; fields: number, cause, status, checkpoint, step, noticed (when the driver began
                // to end it, seconds since 1970); node, culprit (a rank), where one is known
  kDecision,    // `text`: why; fields: action (of Response, lib/supervise/decisions.h), cause; `host`: its node
  kExclusion,   // `host`: an excluded node; `text`: why; fields: until (seconds since 1970)
  kClearExclusion,  // `host`: a node that may be used again
};

template <>
struct EnumNames<RunEventKind> {
  static constexpr std::array table{std::pair{RunEventKind::kBegin, std::string_view("begin")},
                                    std::pair{RunEventKind::kStart, std::string_view("start")},
                                    std::pair{RunEventKind::kSpan, std::string_view("span")},
                                    std::pair{RunEventKind::kFailure, std::string_view("failure")},
                                    std::pair{RunEventKind::kHang, std::string_view("hang")},
                                    std::pair{RunEventKind::kEnd, std::string_view("end")},
                                    std::pair{RunEventKind::kStraggler, std::string_view("straggler")},
                                    std::pair{RunEventKind::kDrift, std::string_view("drift")},
                                    std::pair{RunEventKind::kAttemptStart, std::string_view("attempt_start")},
                                    std::pair{RunEventKind::kAttemptEnd, std::string_view("attempt_end")},
                                    std::pair{RunEventKind::kDecision, std::string_view("decision")},
                                    std::pair{RunEventKind::kExclusion, std::string_view("exclusion")},
                                    std::pair{RunEventKind::kClearExclusion, std::string_view("lift")}};
};

using EventField = std::variant<bool, int64_t, double, std::string>;

inline constexpr int64_t kEventSchema = 1;

struct RunEvent {
  double time = 0;  // seconds since 1970, by the clock of its writer (process_wall_seconds), to the millisecond
  std::string attempt, job;
  RunEventKind kind = RunEventKind::kStart;
  int world_rank = -1;  // -1: no rank
  std::string host, text;
  std::map<std::string, EventField> fields;

  // Returns a number of `fields`, or `otherwise` if it is absent or not a number.
  double number(const std::string& name, double otherwise) const;
  bool flag(const std::string& name) const;
  std::string string(const std::string& name) const;
};

std::string to_json(const RunEvent& event);                       // one line, without its newline
std::optional<RunEvent> run_event_from(const std::string& line);  // none: incomplete or of an unknown kind

// Returns the events of a file in line order. Fails if the file can't be read (os_error ENOENT: there is none) or was
// written by a newer release.
Result<std::vector<RunEvent>> read_events(const std::string& path);

// Returns what ended `attempt`: the earliest failure or hang that is not a consequence of another failure, else the
// earliest one; nothing if there was none. A hang counts from its beginning, unless the run has continued after it: to
// a later hang, to its end, or to a failure that is not the watchdog's.
std::optional<RunEvent> first_cause(std::span<const RunEvent> events, std::string_view attempt);

// Of kStart: where its state came from: "from memory, step 103: 6 of 8 own, 2 from buddies"; "": not recorded.
std::string describe_origin(const RunEvent& start);
// Returns, for example, "rank 13 on node07 (GPU 0000:18:00.0): TEXT".
std::string describe(const RunEvent& event);
// Of kDecision: what was done, after what, and why: "another attempt on the same nodes after hang: WHY".
std::string describe_decision(const RunEvent& event);

// Appends the events of one rank to the event log. Safe for concurrent use; copies write into the same file.
class EventLog {
 public:
  struct Writer {
    std::string path;  // run.dir/events.jsonl
    std::string attempt, job;
    int world_rank = 0;
    std::string host, gpu;
  };
  explicit EventLog(Writer writer);

  // Returns a log of the same file for events of another attempt. Events of both are written in call order.
  EventLog of_attempt(const std::string& attempt) const;

  // Appends an event of this rank with the current time; or `event` unchanged, of any rank, with this event log's
  // attempt and job. Returns false if storage has refused the event, or has not accepted it within a second; then it is
  // written once storage responds again.
  bool append(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields = {}) const;
  bool append(RunEvent event) const;
  // Like append, but does not wait: for the training thread.
  void post(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields = {}) const;
  void post(RunEvent event) const;
  // Waits until storage has accepted or refused all events so far. Returns false if that takes longer than `timeout`.
  bool flush(std::chrono::milliseconds timeout) const;

  // The hook for Job::set_failure_hook: writes a failure, gives the other ranks a moment to write theirs, and returns
  // the first cause if it is another rank's.
  Job::FailureHook failure_hook() const;

  const Writer& writer() const { return writer_; }

 private:
  class File;
  RunEvent event_of(RunEventKind kind) const;
  RunEvent event_of(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields) const;
  std::string line_of(RunEvent event) const;

  Writer writer_;
  std::shared_ptr<File> file_;  // shared by all copies
};

}  // namespace tri
