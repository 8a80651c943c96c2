// The event log, run.dir/events.jsonl: its starts, spans of time, failures, hangs and ends, one JSON object a line.
// Any rank of any node appends; nothing is ever changed. The line of a writer that was killed may be torn: readers pass
// it over.
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
#include "lib/comm/job.h"

namespace tri {

enum class RunEventKind {
  kBegin,  // an attempt holds its run folder; fields: began (its processes' start, seconds since 1970); submitted and
  // allocated (of its job, seconds since 1970), where the scheduler said; boot (of its machine) and uptime (the
  // monotonic clock's seconds at `began`)
  kStart,  // of an attempt's steps; fields: ranks, step (done before it), steps (of the run), metrics_bytes (length of
           // metrics.jsonl: what follows is this attempt's), startup.PHASE (seconds of each phase since `began`),
           // version (of the executable), before.SECTION.KEY and after.SECTION.KEY (against the start before)
  kSpan,   // of time that was no step, and ends now; fields: what (a category of lib/observe/effective_time.h, such as
           // "checkpoint" or "diagnosis"), seconds, step (done before it)
  kFailure,    // of `rank`; fields: code, consequence; gpu, where there is one; seen_by, where `rank` could not speak;
               // step, where loss or gradients were not finite, then -1 is the rank if none can be named
  kHang,       // the watchdog has dumped the job, and ends it if it does not go on; `text`: the headline, `rank`: the
               // first suspect; fields: kind, dump, began (seconds since 1970: when nothing moved any more)
  kEnd,        // of an attempt that ended in good order; fields: code, step (the last that was begun); `text`: what it
               // said, if anything
  kStraggler,  // `rank` (of `host`) is slower than the ranks that do the same work; fields: slowdown (0.1: by 10 %),
  // windows, step, gpu, doctor (it has been by 10 % for long: its machine ought to be examined), lost_ms (of
  // each step, by the simulator); over: no longer
  kDrift,  // a step takes longer than at first, or the loss or the gradient norm has grown; fields: quantity, growth
           // (0.03: by 3 %), since (a step), step; part: of the step, which grew the most
  // Of a supervised run (lib/supervise): the driver's.
  kAttemptStart,  // fields: number, nodes ("node1,node2"), checkpoint (its step)
  kAttemptEnd,  // `text`: of its cause; fields: number, cause, status, checkpoint, step, noticed (when the driver began
                // to end it, seconds since 1970); node, culprit (a rank), where one is known
  kDecision,    // `text`: why; fields: action, cause, row
  kExclusion,   // `host`: an excluded node; `text`: why; fields: until (seconds since 1970)
  kClearExclusion,  // `host`: a node that is taken again
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

  // A number of `fields`; absent, or no number: `otherwise`.
  double number(const std::string& name, double otherwise) const;
  bool flag(const std::string& name) const;
  std::string string(const std::string& name) const;
};

std::string to_json(const RunEvent& event);                       // one line, without its end
std::optional<RunEvent> run_event_from(const std::string& line);  // none: torn, or of a kind that is not known here

// The events of a file, in the order of its lines. Error: the file can't be read (os_error ENOENT: there is none), or a
// newer release wrote it.
Result<std::vector<RunEvent>> read_events(const std::string& path);

// What brought `attempt` to its end: the earliest failure or hang that is no consequence of another's end, else the
// earliest. A hang counts from its beginning, unless the run has gone on after it: to a hang that began after that one
// was dumped, to its end, or to a failure that is not the watchdog's. Nothing: none failed.
std::optional<RunEvent> first_cause(std::span<const RunEvent> events, std::string_view attempt);

// "rank 13 on node07 (GPU 0000:18:00.0): TEXT"
std::string describe(const RunEvent& event);

// One rank's way into the event log. Thread-safe; copies write into the same file.
class EventLog {
 public:
  struct Writer {
    std::string path;  // run.dir/events.jsonl
    std::string attempt, job;
    int world_rank = 0;
    std::string host, gpu;
  };
  explicit EventLog(Writer writer);

  // The same file, for events of another attempt. Events of both are written in the order of the calls.
  EventLog of_attempt(const std::string& attempt) const;

  // Appends an event of this rank, now; or `event` as it stands, of any rank, with this event log's attempt and job.
  // Returns false where it is not known to be written: storage has refused it, or has not taken it within a second, and
  // then it is written when storage goes on.
  bool append(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields = {}) const;
  bool append(RunEvent event) const;
  // As append, without a wait: for the thread that trains.
  void post(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields = {}) const;
  void post(RunEvent event) const;
  // Waits until storage has taken or refused all events so far; returns false where that takes longer than `timeout`.
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
  std::shared_ptr<File> file_;  // of all copies
};

}  // namespace tri
