#include "lib/supervise/batch_job.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "io/base/clock.h"
#include "io/base/console.h"
#include "io/base/date.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/host.h"
#include "io/base/text_file.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "lib/observe/metrics/metrics_reader.h"
#include "lib/observe/status/effective_time.h"
#include "lib/supervise/history.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using std::chrono::duration;

constexpr double kLead = 60;  // Slurm sends the signal of --signal up to this many seconds early

void sleep_seconds(double seconds) { std::this_thread::sleep_for(duration<double>(seconds)); }

using Limit = std::chrono::milliseconds;  // of a storage call

// Returns what `task`, which works on `path`, returns (a Result), or an error if storage does not respond in time.
template <class Task>
auto with_limit(const std::string& path, Limit limit, Task task) {
  using Answer = std::invoke_result_t<Task>;
  return within(path, limit, std::move(task), Answer(file_error("{}: storage does not respond", path)));
}

// Returns the step of the newest valid checkpoint, or 0 if there is none. A checkpoint with a damaged manifest or
// damaged files does not count, because no run resumes from it. Fails with kUsage, so that no later start is tried, if
// another version wrote it.
Result<int64_t> newest_step(const std::string& checkpoints, Limit limit) {
  return with_limit(checkpoints, limit, [checkpoints]() -> Result<int64_t> {
    const auto newest = newest_checkpoint(checkpoints);
    if (!newest && newest.error().os_error == kOtherFormat) return usage_error("{}", newest.error().message);
    if (!newest) return newest.error();
    return newest.value() ? newest.value()->step : 0;
  });
}

// Returns the step that the newest attempt has reached, or 0 if it can't be read. Reads only the end of metrics.jsonl,
// because a requeue waits for it.
int64_t reached_step(const std::string& run_dir, Limit limit) {
  const auto read = [run_dir]() -> int64_t {
    const auto events = read_events(run_dir + "/events.jsonl");
    int64_t step = 0, begin = 0;  // `begin`: offset in bytes of the attempt's lines
    if (!events) return 0;
    for (const RunEvent& event : events.value())
      if (event.kind == RunEventKind::kStart && event.fields.contains("metrics_bytes")) {
        step = static_cast<int64_t>(event.number("step", 0));
        begin = static_cast<int64_t>(event.number("metrics_bytes", 0));
      }
    return last_step_in(run_dir + "/metrics.jsonl", begin).value_or(step);
  };
  return within(run_dir + "/metrics.jsonl", limit, read, int64_t{0});
}

// Returns ", effective training time 96.3 %", the share in the last line of a training's log, or "" if no attempt has
// begun.
std::string effective_part(const std::string& run_dir, Limit limit) {
  const auto read = [run_dir]() -> std::string {
    const auto history = read_events_and_steps(run_dir);
    const auto time = history ? effective_time(history.value()) : std::nullopt;
    return time ? fmt::format(", effective training time {:.1f} %", 100 * time->effective()) : "";
  };
  return within(run_dir + "/metrics.jsonl, all of it", limit, read, std::string());
}

// Returns the nodes that the run excludes at present; none if events.jsonl can't be read.
std::optional<std::vector<std::string>> exclusions_of(const std::string& run_dir, Limit limit) {
  using Nodes = std::optional<std::vector<std::string>>;
  const std::string path = run_dir + "/events.jsonl";
  const auto read = [path]() -> Nodes {
    const auto events = read_events(path);
    if (!events) return events.error().os_error == ENOENT ? Nodes(std::in_place) : Nodes();
    std::vector<std::string> nodes;
    for (const Exclusion& exclusion : history_from(events.value(), wall_seconds()).exclusions)
      nodes.push_back(exclusion.node);
    return nodes;
  };
  return within(path, limit, read, Nodes());
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  const std::set<std::string> unique(names.begin(), names.end());
  return {unique.begin(), unique.end()};
}

}  // namespace

StatusMeaning meaning_of(int status) {
  switch (status) {
    case 0:
      return {JobOutcome::kFinished, "finished"};
    case 1:
      return {JobOutcome::kRequeue, "srun failed, or an internal error"};
    case static_cast<int>(ExitCode::kUsage):
      return {JobOutcome::kStop, "config or usage error"};
    case static_cast<int>(ExitCode::kFile):
      return {JobOutcome::kStop, "file or checkpoint error"};
    case static_cast<int>(ExitCode::kDevice):
      return {JobOutcome::kRequeue, "device error"};
    case static_cast<int>(ExitCode::kComm):
      return {JobOutcome::kRequeue, "communication error"};
    case static_cast<int>(ExitCode::kWatchdog):
      return {JobOutcome::kRequeue, "ended by the watchdog"};
    case static_cast<int>(ExitCode::kNotFinite):
      return {JobOutcome::kStop, "loss or gradients are not finite"};
    case static_cast<int>(ExitCode::kNoProgress):
      return {JobOutcome::kStop, "consecutive attempts made no newer checkpoint"};
    case static_cast<int>(ExitCode::kDrained):
      return {JobOutcome::kRequeue, "stopped early"};
    default:
      if (status > 128) return {JobOutcome::kRequeue, fmt::format("killed by signal {}", status - 128)};
      return {JobOutcome::kStop, "not an exit status of trireme"};
  }
}

BatchJob::BatchJob(Options options) : options_(std::move(options)), slurm_(options_.start) {}

void BatchJob::say(const std::string& text) const {
  print_err("{} job {} restart {}: {}\n", local_date(wall_seconds()), options_.start.batch.job, restart(), text);
}

std::string BatchJob::next_start() const {
  return newest_ > 0 ? fmt::format("resumes from step {}", newest_) : "starts from step 0";
}

void BatchJob::say_stalled(int count) const {
  say(
      fmt::format("stopped: {} in a row made no checkpoint after step {}, so RESTART_BUDGET={} is exhausted. Find the "
                  "cause above, then submit again: the run {}",
                  counted(count, "restart"), record_.best_step, options_.restart_budget, next_start()));
}

// A second job of a run must not touch the state of the first one. Waits for a job that is ending.
Result<void> BatchJob::await_other_job() const {
  const auto text = state_text();
  if (!text && text.error().os_error == ENOENT) return {};
  if (!text) return text.error();
  const std::string other = job_of_record(text.value());
  if (other.empty() || other == options_.start.batch.job) return {};
  std::string state = queue_state(other);
  const double end = monotonic_seconds() + options_.node_seconds;
  if (state == "COMPLETING")
    say(fmt::format("waiting up to {:.0f} s for job {} of {}, which is COMPLETING", options_.node_seconds, other,
                    options_.folders.run));
  for (; state == "COMPLETING" && monotonic_seconds() < end; state = queue_state(other)) sleep_seconds(2);
  if (!state.empty())
    return usage_error(
        "{} is the run of job {}, which is {}; nothing was changed. Wait for that job or cancel it, then "
        "submit again",
        options_.folders.run, other, state);
  // Slurm no longer knows the job or is not reachable, for example from a container. The run's locks show whether the
  // job still trains.
  for (const char* name : {"/supervise.lock", "/run.lock"}) {
    const std::string path = options_.folders.run + name;
    const auto holder =
        with_limit(path, limit(), [path, start = options_.start.batch] { return holder_of_lock(path, start); });
    if (!holder) return holder.error();
    if (holder.value())
      return usage_error("{} is the run of job {}, and {} holds its {}; nothing was changed{}", options_.folders.run,
                         other, holder.value()->text, name + 1, stale_lock_remedy(*holder.value()));
  }
  return {};
}

Result<std::string> BatchJob::state_text() const {
  auto text = with_limit(state_path(), limit(), [path = state_path()] { return read_text(path); });
  if (text)
    if (auto checked = check_record_schema(state_path(), text.value()); !checked) return checked.error();
  return text;
}

// Sets record_ and newest_. If the record can't be read, record_ is that of a job without progress and is not saved. If
// the checkpoints can't be read, the record is complete and newest_ is its best step.
Result<void> BatchJob::load_record() {
  record_ = {.job = options_.start.batch.job};
  take_noted_progress();
  const auto text = state_text();
  if (restart() > 0 && !text && text.error().os_error != ENOENT) return text.error();
  const auto newest = newest_step(options_.folders.checkpoints, limit());
  const JobRecord fresh{.job = record_.job, .best_step = options_.begun_at.value_or(newest ? newest.value() : 0)};
  record_ = restart() == 0 || !text ? fresh : job_record_from(text.value(), fresh, restart());
  take_noted_progress();
  newest_ = newest ? newest.value() : record_.best_step;
  has_record_ = true;
  if (!newest) return newest.error();
  return {};
}

void BatchJob::save_record() const {
  if (!has_record_) return;
  const auto write = [path = state_path(), text = to_text(record_),
                      name = fmt::format("{}.{}", record_.job, restart())] { return write_file(path, text, name); };
  if (const auto saved = with_limit(state_path(), limit(), write); !saved)
    say(fmt::format("the state file {} could not be written: {}", state_path(), saved.error().message));
}

void BatchJob::take_noted_progress() {
  const int noted = progress_in_comment(slurm_.comment().value_or(""), restart());
  record_.progress_restart = std::max(record_.progress_restart, noted);
}

// Records progress if that restart of the job has produced a newer checkpoint.
void BatchJob::note_progress(int of_restart) {
  if (newest_ <= record_.best_step) return;
  record_.best_step = newest_;
  record_.progress_restart = std::max(0, of_restart);
  if (of_restart <= 0) return;
  const auto comment = slurm_.comment();
  if (SlurmJob::has_commands() && (!comment || !slurm_.set_comment(comment_with_progress(*comment, of_restart))))
    say("the progress of this start could not be recorded in the job's comment");
}

void BatchJob::warn_of_short_limit() const {
  const double begin = slurm_.time("StartTime"), end = slurm_.time("EndTime");
  if (begin <= 0 || end <= 0 || end - begin > options_.drain_seconds + kLead) return;
  say(fmt::format(
      "the time limit of {:.0f} s leaves no time to train: the signal to save a checkpoint (--signal) comes "
      "at least DRAIN_SECONDS={:.0f} s before it; submit with a longer --time",
      end - begin, options_.drain_seconds));
}

std::vector<std::string> BatchJob::environment() const {
  std::vector<std::string> times{fmt::format("TRIREME_BEGUN_AT={}", newest_)};
  if (const double time = slurm_.time("SubmitTime"); time > 0)
    times.push_back(fmt::format("TRIREME_SUBMITTED={:.0f}", time));
  if (const double time = slurm_.time("StartTime"); time > 0)
    times.push_back(fmt::format("TRIREME_ALLOCATED={:.0f}", time));
  return times;
}

// Earlier starts of this job and submit.sh have created files in the run folder. If there are none, the folder's file
// system is not mounted, and the run would start from step 0. So only the first start creates the folder and a state
// file in it.
Result<bool> BatchJob::begin(const std::string& what) {
  const std::string& run_dir = options_.folders.run;
  if (auto free = await_other_job(); !free) return free.error();
  if (restart() == 0) {
    const auto made = with_limit(run_dir, limit(), [run_dir]() -> Result<void> {
      std::error_code problem;
      fs::create_directories(run_dir, problem);
      if (problem) return system_error(problem.value(), "run.dir {}: cannot create the folder", run_dir);
      return {};
    });
    if (!made) return made.error();
  }
  if (auto loaded = load_record(); !loaded) return loaded.error();
  if (restart() > 0 && newest_ == 0) {
    const auto has_files = with_limit(run_dir, limit(), [run_dir]() -> Result<bool> {
      std::error_code problem;
      for (const char* name : {"/slurm.state", "/run.lock", "/slurm.submitted"})
        if (fs::exists(run_dir + name, problem)) return true;
      return false;
    });
    if (!has_files) return has_files.error();
    if (!has_files.value())
      return file_error(
          "{} holds no files of this job's earlier starts; check that its file system is mounted on {}. To begin from "
          "step 0, cancel the job and submit it again",
          run_dir, host_name());
  }
  note_progress(restart() - 1);  // made by a start that was killed
  say(fmt::format("{} in {}: the run {}, {} lost{}", what, run_dir, next_start(),
                  counted(std::max<int64_t>(0, reached_step(run_dir, limit()) - newest_), "step"),
                  effective_part(run_dir, limit())));
  save_record();
  if (restarts_without_progress() > options_.restart_budget) {
    say_stalled(restarts_without_progress() - 1);
    return false;
  }
  warn_of_short_limit();
  return true;
}

BatchJob::Left BatchJob::end(int status) {
  const auto [outcome, text] = meaning_of(status);
  const bool has_slurm = SlurmJob::has_commands();
  const JobState state =
      has_slurm ? slurm_.state(outcome == JobOutcome::kFinished ? 0 : options_.controller_seconds) : JobState::kUnknown;
  // The next start may already run on other nodes while this one was cut off; run folder and job now belong to it.
  if (state == JobState::kRequeued) {
    say(fmt::format("status {} ({}); the job has already been requeued", status, text));
    return {};
  }
  const int64_t reached = reached_step(options_.folders.run, limit());
  if (outcome == JobOutcome::kFinished) {
    say(fmt::format("finished at step {}{}", reached, effective_part(options_.folders.run, limit())));
    return {};
  }
  if (const auto loaded = load_record(); !loaded) {
    say(loaded.error().message);
  } else {
    note_progress(restart());
    save_record();
  }
  say(fmt::format("status {} ({}) after step {}, {}", status, text, reached,
                  newest_ > 0 ? fmt::format("newest checkpoint: step {}", newest_) : "no checkpoint beyond step 0"));
  if (outcome == JobOutcome::kStop) {
    say("stopped: a restart would fail in the same way");
    return {};
  }
  if (!has_slurm) return {.requeue = true, .progress_restart = record_.progress_restart};
  if (restarts_without_progress() >= options_.restart_budget) {
    // A job that ends for another reason needs no message about its budget.
    const JobState now = slurm_.state(options_.controller_seconds);
    if (now != JobState::kRequeued && now != JobState::kCancelled) {
      say_stalled(restarts_without_progress());
      return {};
    }
  }
  if (!requeue()) return {.requeue = true, .progress_restart = record_.progress_restart};
  return {};
}

// If a job is requeued while one of its nodes is dead but not yet DOWN, it may stay pending forever. So wait until its
// nodes respond or are DOWN; in the latter case Slurm has usually requeued the job itself. Waits at most node_seconds,
// and not while the job is being ended. A DOWN node is looked for first: Slurm has removed it from the job, and the
// step that asks all nodes would wait a minute for a node that the job no longer has.
void BatchJob::await_nodes() const {
  const double end = monotonic_seconds() + options_.node_seconds;
  for (bool said = false; !slurm_.has_node_out_of_service() && !slurm_.nodes_answer(); said = true) {
    if (!said)
      say(fmt::format("a node of {} does not respond; the job is requeued when Slurm has marked the node DOWN",
                      options_.start.node_list));
    if (monotonic_seconds() >= end)
      return say(fmt::format("a node still does not respond after {:.0f} s; the job is requeued anyway",
                             options_.node_seconds));
    const JobState state = slurm_.state(0);
    if (state != JobState::kRunning && state != JobState::kUnknown) return;
    sleep_seconds(2);
  }
}

// Returns false if Slurm does not accept the requeue from here, for example from a container without its key.
bool BatchJob::requeue() {
  const std::string resumes = newest_ > 0 ? fmt::format("; the next submission resumes from step {}", newest_) : "";
  JobState state = slurm_.state(0);
  if (state == JobState::kRunning || state == JobState::kUnknown) {
    await_nodes();
    state = slurm_.state(options_.controller_seconds);
  }
  if (state == JobState::kRequeued || state == JobState::kCancelled || state == JobState::kNoRequeue) {
    say(state == JobState::kRequeued    ? "the job has already been requeued"
        : state == JobState::kCancelled ? "stopped: the job was cancelled" + resumes
                                        : "stopped: the job does not allow a requeue (Requeue=0)" + resumes);
    return true;
  }
  say("requeued");  // Slurm then ends the batch script, and may end this process
  for (const double end = monotonic_seconds() + options_.controller_seconds; !slurm_.requeue(); sleep_seconds(5))
    if (monotonic_seconds() >= end) {
      say(fmt::format("slurmctld has not accepted the requeue from this node for {:.0f} s",
                      options_.controller_seconds));
      return false;
    }
  exclude_nodes();
  return true;
}

// Slurm accepts a change of excluded nodes only while the job is pending again. The user's own exclusions stay.
void BatchJob::exclude_nodes() {
  const auto excluded = exclusions_of(options_.folders.run, limit());
  if (!excluded || sorted(*excluded) == sorted(record_.excluded)) return;
  std::vector<std::string> all = slurm_.excluded();
  std::erase_if(all, [&](const std::string& node) {
    return std::find(record_.excluded.begin(), record_.excluded.end(), node) != record_.excluded.end();
  });
  all.insert(all.end(), excluded->begin(), excluded->end());
  all = sorted(all);
  const std::string why = excluded->empty()
                              ? "the run no longer excludes any node"
                              : fmt::format("the run excludes {} (`trireme supervise {} --nodes` lists the reasons)",
                                            joined(*excluded), options_.folders.run);
  const auto set = [&] {  // just after a requeue Slurm may not be ready
    for (const double end = monotonic_seconds() + 15; !slurm_.set_excluded(all); sleep_seconds(1))
      if (monotonic_seconds() >= end) return false;
    return true;
  };
  if (slurm_.can_spare(all) && set()) {
    record_.excluded = *excluded;
    save_record();
    return say(fmt::format("{}: this job excludes {} from now on (`scontrol update JobId={} ExcNodeList=` clears that)",
                           why, all.empty() ? "no node" : joined(all), options_.start.batch.job));
  }
  if (slurm_.are_out_of_service(*excluded)) return say(why + ", and Slurm has taken these nodes out of service");
  say(fmt::format(
      "{}, but Slurm has not excluded these nodes from the job; submit with --exclude={}, and have the nodes "
      "examined",
      why, joined(all)));
}

}  // namespace tri
