#include "lib/fault/events.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>

#include "io/base/clock.h"
#include "io/base/json.h"
#include "io/base/line_file.h"
#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/base/poll.h"
#include "io/base/schema.h"
#include "io/base/text_file.h"
#include "io/base/within.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kTimeout{1};  // for storage that hangs
constexpr std::chrono::milliseconds kPause{20}, kLongestPause{320};
// How long a failing rank waits for the events of other nodes. A rank that fails as a consequence of another failure
// waits longer, because it knows that the cause will follow.
constexpr std::chrono::milliseconds kOthersTimeout{500}, kCauseTimeout{2000};

double now() { return std::round(process_wall_seconds() * 1000) / 1000; }

// Returns the first cause of the attempt that has been written by the end of the timeout.
std::optional<RunEvent> await_cause(const std::string& path, const std::string& attempt,
                                    std::chrono::milliseconds timeout, bool only_causes) {
  std::optional<RunEvent> cause;
  std::this_thread::sleep_for(kPause);
  // The pauses grow, because thousands of ranks may read the same file.
  poll_for(timeout - kPause, 2 * kPause, kLongestPause, [&] {
    const auto events = read_events(path);
    if (events) cause = first_cause(events.value(), attempt);
    return only_causes && cause && !cause->flag("consequence");
  });
  return cause;
}

}  // namespace

double RunEvent::number(const std::string& name, double otherwise) const {
  const auto field = fields.find(name);
  if (field == fields.end()) return otherwise;
  if (const auto* whole = std::get_if<int64_t>(&field->second)) return static_cast<double>(*whole);
  const auto* real = std::get_if<double>(&field->second);
  return real == nullptr ? otherwise : *real;
}

bool RunEvent::flag(const std::string& name) const {
  const auto field = fields.find(name);
  return field != fields.end() && std::holds_alternative<bool>(field->second) && std::get<bool>(field->second);
}

std::string RunEvent::string(const std::string& name) const {
  const auto field = fields.find(name);
  return field != fields.end() && std::holds_alternative<std::string>(field->second)
             ? std::get<std::string>(field->second)
             : "";
}

std::string to_json(const RunEvent& event) {
  Json fields = Json::object();
  for (const auto& [name, value] : event.fields)
    fields[name] = std::visit([](const auto& known) { return Json(known); }, value);
  const Json object = {
      {"time", event.time},       {"attempt", event.attempt}, {"job", event.job},   {"kind", enum_name(event.kind)},
      {"rank", event.world_rank}, {"host", event.host},       {"text", event.text}, {"fields", fields},
      {"schema", kEventSchema}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);  // texts may contain any bytes
}

std::optional<RunEvent> run_event_from(const std::string& line) {
  try {
    const Json object = parse_json<Json>(line);
    const auto kind = enum_from_name<RunEventKind>(object.at("kind").get<std::string>());
    if (!kind) return std::nullopt;
    RunEvent event{.time = object.at("time"),
                   .attempt = object.at("attempt"),
                   .job = object.at("job"),
                   .kind = *kind,
                   .world_rank = object.at("rank"),
                   .host = object.at("host"),
                   .text = object.at("text")};
    for (const auto& [name, value] : object.at("fields").items()) {
      if (value.is_boolean())
        event.fields[name] = value.get<bool>();
      else if (value.is_number_integer())
        event.fields[name] = value.get<int64_t>();
      else if (value.is_number())
        event.fields[name] = value.get<double>();
      else if (value.is_string())
        event.fields[name] = value.get<std::string>();
    }
    return event;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Result<std::vector<RunEvent>> read_events(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return text.error();
  std::istringstream file(text.value());
  std::vector<RunEvent> events;
  for (std::string line; std::getline(file, line);) {
    if (auto known = check_schema(path, schema_of_line(line), kEventSchema); !known) return known.error();
    if (auto event = run_event_from(line)) events.push_back(std::move(*event));
  }
  return events;
}

std::optional<RunEvent> first_cause(std::span<const RunEvent> events, std::string_view attempt) {
  const auto began = [](const RunEvent& event) { return event.number("began", event.time); };
  bool watchdog = false, others = false;  // what ended the attempt
  double last_hang = -INFINITY;           // when the last hang began; the run recovered from earlier ones
  for (const RunEvent& event : events) {
    if (event.attempt != attempt) continue;
    const bool failure = event.kind == RunEventKind::kFailure;
    watchdog |= failure && event.number("code", 0) == static_cast<double>(ExitCode::kWatchdog);
    others |= failure || event.kind == RunEventKind::kEnd;
    if (event.kind == RunEventKind::kHang) last_hang = std::max(last_hang, began(event));
  }
  const bool hangs_count = watchdog || !others;  // else the run has recovered from the hangs
  const auto order = [&](const RunEvent& event) { return std::pair(event.flag("consequence"), began(event)); };
  const RunEvent* first = nullptr;
  for (const RunEvent& event : events) {
    const bool last = event.kind == RunEventKind::kHang && event.time >= last_hang;
    const bool counts = event.kind == RunEventKind::kFailure || (last && hangs_count);
    if (event.attempt != attempt || !counts) continue;
    if (first == nullptr || order(event) < order(*first)) first = &event;
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

std::string describe_origin(const RunEvent& start) {
  const std::string from = start.string("from"), why = start.string("memory_why");
  const auto count = [&](const char* name) { return static_cast<int64_t>(start.number(name, 0)); };
  const int64_t step = count("step");
  if (from == "memory" || from == "buddy")
    return fmt::format("from memory, step {}: {} of {} own, {} from buddies", step, count("own_ranks"),
                       count("own_ranks") + count("buddy_ranks"), count("buddy_ranks"));
  const std::string reason = why.empty() ? "" : fmt::format(" (memory: {})", why);
  if (from == "storage") return fmt::format("from storage, step {}{}", step, reason);
  return from == "nothing" ? "from start values" + reason : "";
}

std::string describe(const RunEvent& event) {
  if (event.kind == RunEventKind::kHang) return event.text;  // the text names its rank
  if (event.world_rank < 0) return event.text;
  const std::string gpu = event.string("gpu");
  return fmt::format("rank {} on {}{}: {}", event.world_rank, event.host, gpu.empty() ? "" : " (GPU " + gpu + ")",
                     event.text);
}

std::string describe_decision(const RunEvent& event) {
  const std::string action = event.string("action"), cause = event.string("cause");
  const std::string node = event.host.empty() ? "the node" : "node " + event.host;
  const std::pair<std::string_view, std::string> phrases[] = {
      {"done", "finished"},
      {"leave", "the supervisor stopped"},
      {"retry", "another attempt on the same nodes"},
      {"exclude", "another attempt without " + node},
      {"doctor", "the doctor examines " + node},
      {"stop", "no further attempt"},
      {"report", event.host.empty() ? "reported" : "reported about " + node},
      {"relieve", "a spare replaces " + node},
      {"successor", "another job continues the run"}};
  const auto* const known =
      std::find_if(std::begin(phrases), std::end(phrases), [&](const auto& phrase) { return phrase.first == action; });
  std::string text = known == std::end(phrases) ? action : known->second;
  if (!cause.empty() && action != "done" && action != "leave" && action != "report" && action != "relieve")
    text += " after " + cause;
  return text + (text.empty() || event.text.empty() ? "" : ": ") + event.text;
}

RunEvent EventLog::event_of(RunEventKind kind) const {
  return {.time = now(),
          .attempt = writer_.attempt,
          .job = writer_.job,
          .kind = kind,
          .world_rank = writer_.world_rank,
          .host = writer_.host};
}

RunEvent EventLog::event_of(RunEventKind kind, const std::string& text,
                            std::map<std::string, EventField> fields) const {
  RunEvent event = event_of(kind);
  event.text = text;
  event.fields = std::move(fields);
  return event;
}

std::string EventLog::line_of(RunEvent event) const {
  if (event.time == 0) event.time = now();
  event.attempt = writer_.attempt;
  event.job = writer_.job;
  return to_json(event);
}

// Most ranks write no event, so the writer's thread is created with the first one.
class EventLog::File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}

  // Returns false if the line is dropped. Sets `written` once storage has accepted the line.
  bool post(std::string line, std::shared_ptr<std::atomic<bool>> written) {
    FileWriter* const writer = this->writer();
    const size_t bytes = line.size();
    return writer != nullptr && writer->post(bytes, [path = path_, line = std::move(line), written] {
      Result<void> appended = append_line(path, line);
      if (written) *written = appended.ok();
      return appended;
    });
  }
  bool flush(std::chrono::milliseconds timeout) {
    FileWriter* writer = nullptr;
    {
      const MutexLock lock(mutex_);
      writer = writer_.get();
    }
    return writer == nullptr || writer->flush(timeout);
  }

 private:
  FileWriter* writer() {
    const MutexLock lock(mutex_);
    if (writer_ == nullptr)
      if (auto started = FileWriter::start({.path = path_,
                                            .max_bytes = size_t{4} << 20,
                                            .report = [](const std::string& message) { log_warn("{}", message); },
                                            .close_timeout = kTimeout}))
        writer_ = std::move(started).value();
    return writer_.get();
  }

  const std::string path_;
  Mutex mutex_;
  std::unique_ptr<FileWriter> writer_ TRI_GUARDED_BY(mutex_);
};

EventLog::EventLog(Writer writer) : writer_(std::move(writer)), file_(std::make_shared<File>(writer_.path)) {}

EventLog EventLog::of_attempt(const std::string& attempt) const {
  EventLog other = *this;
  other.writer_.attempt = attempt;
  return other;
}

bool EventLog::append(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields) const {
  return append(event_of(kind, text, std::move(fields)));
}

bool EventLog::append(RunEvent event) const {
  const auto written = std::make_shared<std::atomic<bool>>(false);
  return file_->post(line_of(std::move(event)), written) && file_->flush(kTimeout) && *written;
}

void EventLog::post(RunEventKind kind, const std::string& text, std::map<std::string, EventField> fields) const {
  post(event_of(kind, text, std::move(fields)));
}

void EventLog::post(RunEvent event) const { file_->post(line_of(std::move(event)), nullptr); }

bool EventLog::flush(std::chrono::milliseconds timeout) const { return file_->flush(timeout); }

Job::FailureHook EventLog::failure_hook() const {
  return [event_log = *this](const Job::Failure& failure) -> std::optional<Job::FirstCause> {
    const Writer& writer = event_log.writer();
    RunEvent event = event_log.event_of(RunEventKind::kFailure);
    event.text = failure.text;
    event.fields["code"] = static_cast<int64_t>(failure.code);
    event.fields["consequence"] = failure.cause == Cause::kPeer;
    if (failure.world_rank == writer.world_rank) {
      if (!writer.gpu.empty()) event.fields["gpu"] = writer.gpu;
    } else {
      event.world_rank = failure.world_rank;
      event.fields["seen_by"] = int64_t{writer.world_rank};
    }
    if (!event_log.append(event)) return std::nullopt;

    const bool consequence = failure.cause == Cause::kPeer;
    const auto timeout = consequence ? kCauseTimeout : kOthersTimeout;
    const auto cause = within(
        writer.path + " (first cause)", timeout + kTimeout,
        [=, path = writer.path, attempt = writer.attempt] { return await_cause(path, attempt, timeout, consequence); },
        std::optional<RunEvent>());
    if (!cause || (cause->world_rank == event.world_rank && cause->kind == event.kind)) return std::nullopt;
    const int fallback = static_cast<int>(cause->kind == RunEventKind::kHang ? ExitCode::kWatchdog : failure.code);
    return Job::FirstCause{.text = describe(*cause),
                           .code = static_cast<ExitCode>(static_cast<int>(cause->number("code", fallback)))};
  };
}

}  // namespace tri
