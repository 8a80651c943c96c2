#include "lib/train/loop.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "io/base/log.h"
#include "io/base/random.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/run_lock.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/fault/stop_deadline.h"
#include "lib/fault/stop_signals.h"
#include "lib/model/flops.h"
#include "lib/observe/metrics.h"
#include "lib/observe/report.h"
#include "lib/observe/step_times.h"
#include "lib/train/inputs.h"
#include "lib/train/node_loader.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Where Slurm runs this.
BatchStart batch_start() {
  const char *job = std::getenv("SLURM_JOB_ID"), *restart = std::getenv("SLURM_RESTART_COUNT");
  return {job == nullptr ? "" : job, restart == nullptr ? 0 : std::atoi(restart)};
}

// The run's folder, locked against other jobs, with its config. For one rank.
Result<RunLock> open_run_folder(const Config& config, const std::string& attempt) {
  std::error_code problem;
  std::filesystem::create_directories(config.run.dir, problem);
  if (problem) return file_error("run.dir {}: {}", config.run.dir, problem.message());
  auto lock = RunLock::take(config.run.dir, attempt, batch_start());
  if (!lock) return lock;
  std::ofstream out(config.run.dir + "/config.yaml");
  out << to_yaml(config);
  if (!out.flush()) return file_error("{}/config.yaml can't be written", config.run.dir);
  return lock;
}

// The earlier run's figures up to the step where this one begins stay; all of them are kept aside too.
Result<void> begin_metrics(const std::string& path, int64_t completed) {
  if (!std::filesystem::exists(path)) return {};
  std::error_code problem;
  int number = 1;
  const auto aside = [&] { return fmt::format("{}.{}.jsonl", path.substr(0, path.rfind(".jsonl")), number); };
  while (std::filesystem::exists(aside())) ++number;
  std::filesystem::rename(path, aside(), problem);
  if (problem) return file_error("{}: {}", aside(), problem.message());
  if (completed == 0) return {};
  std::ifstream earlier(aside());
  std::ofstream kept(path);
  for (std::string line; std::getline(earlier, line);)
    if (step_of_line(line) <= completed) kept << line << '\n';
  if (!kept.flush()) return file_error("{} can't be written", path);
  return {};
}

class Loop {
 public:
  Loop(const Config& config, const Mesh& mesh, Job& job, Device& device, Inputs& inputs, Trainer& trainer,
       Checkpointer& checkpoints, RunProgress begun, int64_t memory_bytes, StartupClock startup)
      : config_(config),
        mesh_(mesh),
        job_(job),
        device_(device),
        inputs_(inputs),
        trainer_(trainer),
        checkpoints_(checkpoints),
        begun_(begun),
        grace_(config.fault.grace_seconds, job, signals_),
        memory_bytes_(memory_bytes),
        startup_(std::move(startup)),
        loader_(config, mesh, &job, job.node_ranks(), device, *inputs.dataset, begun.samples / config.data.global_batch,
                config.run.steps - begun.steps) {
    if (mesh.world_rank == 0) metrics_ = std::make_unique<MetricsFile>(config.run.dir + "/metrics.jsonl");
  }

  Result<void> run() {
    const auto start = Clock::now();
    int64_t completed = begun_.steps;
    Stop stop = Stop::kNo;
    while (completed < config_.run.steps && stop == Stop::kNo) {
      const int64_t step = completed++;
      auto answer = train_step(step);
      if (!answer) return answer.error();
      stop = answer.value();
      grace_.at(completed, checkpoints_.saved_step());
      if (step == begun_.steps) {
        startup_.phase_done("first step");
        log_info("{}", startup_.report());
      }
      const bool last = completed == config_.run.steps;
      const int64_t every = config_.checkpoint.every;
      if (stop != Stop::kAsItIs && (last || stop == Stop::kSave || (every > 0 && completed % every == 0)))
        if (auto begun = checkpoints_.begin(progress_after(completed)); !begun) return begun;
      if (stop != Stop::kNo) break;
      if (last || (config_.run.eval_every > 0 && completed % config_.run.eval_every == 0)) evaluate(completed);
      if (last || (config_.run.sample_every > 0 && completed % config_.run.sample_every == 0)) sample(completed);
    }
    if (auto finished = checkpoints_.finish(); !finished) return finished;
    grace_.done();
    report_checkpoints();
    log_summary(job_, mesh_, times_, trainer_.runtime().times(), seconds_since(start));
    log_data(job_, mesh_, loader_.bytes_read(), completed - begun_.steps);
    if (stop == Stop::kAsItIs)
      return Error{fmt::format("stopped by a signal after step {} of {}; there was no time to save it, the steps after "
                               "{} ARE LOST: run me again, with a larger fault.grace_seconds if the site allows one",
                               completed, config_.run.steps, checkpoints_.saved_step()),
                   ExitCode::kDrained};
    if (stop == Stop::kSave && completed < config_.run.steps)
      return Error{fmt::format("stopped by a signal after step {} of {}; the checkpoint is saved: run me again",
                               completed, config_.run.steps),
                   ExitCode::kDrained};
    return {};
  }

 private:
  enum class Stop { kNo, kSave, kAsItIs };  // the last: what is under way is finished, for more there is no time

  RunProgress progress_after(int64_t completed) const {
    return {completed, begun_.samples + (completed - begun_.steps) * config_.data.global_batch};
  }

  void report_checkpoints() {
    for (const CheckpointStats& stats : checkpoints_.published()) {
      metrics_->checkpoint(stats.step, stats.bytes, stats.stall_seconds, stats.seconds);
      log_info("checkpoint of step {}: {}, training waited {:.0f} ms, written in {} ({:.2f} GB/s; slowest rank {}: {})",
               stats.step, format_bytes(stats.bytes), 1e3 * stats.stall_seconds, format_duration(stats.seconds),
               static_cast<double>(stats.bytes) / std::max(stats.seconds, 1e-9) / 1e9, stats.slowest_rank,
               format_duration(stats.slowest_seconds));
      if (stats.behind)
        log_warn(
            "checkpoint of step {}: the one before was still being written, so training waited for it; storage is "
            "too slow for checkpoint.every {}",
            stats.step, config_.checkpoint.every);
    }
  }

  // What all ranks make of a stop signal, from numbers that are the same on all of them.
  Stop answer_to_signal(const StepResult& result, Clock::time_point flags_sent) {
    if (result.stop == 0) return Stop::kNo;
    grace_.agreed(flags_sent -
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(result.stop_age)));
    const double grace = config_.fault.grace_seconds;
    const bool enough = StopDeadline::enough(grace, result.stop_age, result.time_needed);
    const std::optional<int64_t> under_way = checkpoints_.under_way();
    if (!enough && mesh_.world_rank == 0)
      log_warn(
          "fault.grace_seconds: {:g} s are too short: {:.1f} s were gone when all knew of the stop signal, a step and "
          "a checkpoint take about {:.1f} s{}",
          grace, result.stop_age, result.time_needed,
          under_way ? fmt::format("; only the one under way, of step {}, is finished", *under_way) : "");
    return enough || !under_way ? Stop::kSave : Stop::kAsItIs;
  }

  Result<Stop> train_step(int64_t step) {
    const auto start = Clock::now();
    const double waited = loader_.wait_seconds();
    const int64_t read = loader_.bytes_read();
    const StepTokens tokens = loader_.next();
    RankFlags flags = checkpoints_.flags();
    if (const auto signalled = signals_.first()) {
      flags.stop = true;
      flags.stop_age = static_cast<float>(seconds_since(*signalled));
    }
    flags.time_needed = static_cast<float>(step_seconds_ + checkpoints_.seconds_needed());
    const auto flags_sent = Clock::now();
    const StepResult result = trainer_.step(step, tokens.inputs, tokens.targets, flags);
    const double seconds = seconds_since(start);
    step_seconds_ = seconds;
    const StepTimes times =
        step_times(result.timeline, result.pp_transfer_seconds, seconds, loader_.wait_seconds() - waited);
    times_ += times;

    const auto step_samples = static_cast<int64_t>(config_.data.global_batch);
    const double step_tokens = static_cast<double>(step_samples) * config_.model.seq_len;
    const double tflops = model_flops_per_token(config_) * step_tokens / seconds / mesh_.world_size() / 1e12;
    const std::optional<double> peak = device_.peak_tflops(config_.precision.compute);
    StepMetrics metrics{.step = step + 1,
                        .samples = progress_after(step + 1).samples,
                        .tokens = progress_after(step + 1).samples * config_.model.seq_len,
                        .loss = result.loss,
                        .grad_norm = result.grad_norm,
                        .learning_rate = result.learning_rate,
                        .step_ms = seconds * 1e3,
                        .tokens_per_s = step_tokens / seconds,
                        .tflops_per_rank = tflops,
                        .mfu = peak ? std::optional(tflops / *peak) : std::nullopt,
                        .times = times,
                        .data_bytes = loader_.bytes_read() - read};
    if (metrics_) {
      metrics_->step(metrics);
      const bool keep = metrics.step % config_.metrics.log_every == 0 || metrics.step == config_.run.steps;
      progress_.show(console_line(metrics, config_.run.steps, memory_bytes_), keep || !result.finite());
    }
    if (!result.finite()) return not_finite(metrics);
    if (auto advanced = checkpoints_.advance(result.saved, result.failed); !advanced) return advanced.error();
    report_checkpoints();
    return answer_to_signal(result, flags_sent);
  }

  // Every rank says where its own numbers went wrong; rank 0 tells the user.
  Error not_finite(const StepMetrics& metrics) {
    const std::vector<std::string> names = trainer_.not_finite_names();
    std::optional<std::string> mine;
    if (!names.empty()) {
      mine = fmt::format("  rank {} [{}]: {}", mesh_.world_rank, mesh_.place(), names.front());
      if (names.size() > 1) *mine += fmt::format(" and {} more", names.size() - 1);
    }
    std::string report =
        fmt::format("step {}: loss {} and gradient norm {} are not finite; stopped before the next step", metrics.step,
                    metrics.loss, metrics.grad_norm);
    bool anyone = false;
    for (const auto& of_rank : job_.gather(mine)) {
      if (of_rank) report += "\n" + *of_rank;
      anyone |= of_rank.has_value();
    }
    if (!anyone)
      report += "\n  when the step was repeated, every rank's numbers were finite: a device or its memory may fail";
    return Error{job_.broadcast(report) + "\nLower lr.peak, raise lr.warmup_steps, or look at the data of this step.",
                 ExitCode::kNotFinite};
  }

  void evaluate(int64_t completed) {
    const auto result = trainer_.evaluator().evaluate(*inputs_.dataset, Split::kValidation, config_.run.eval_batches,
                                                      inputs_.tokenizer.get());
    if (!result || mesh_.world_rank != 0) return;
    metrics_->evaluation(completed, result->loss);
    log_info(
        "step {}: validation loss {:.4f} nats/token, perplexity {:.3f} per token, {:.3f} per byte, over {} samples",
        completed, result->loss, result->perplexity(), result->perplexity_per_byte(), result->samples);
  }

  void sample(int64_t completed) {
    if (config_.run.sample_tokens == 0) return;
    std::vector<int32_t> prompt = inputs_.tokenizer->encode(config_.run.sample_prompt);
    const size_t begin = prompt.empty() ? 1 : 0;
    if (prompt.empty()) prompt.push_back(inputs_.tokenizer->eod());  // as if a document began
    const auto text = trainer_.evaluator().generate(
        std::move(prompt),
        {.tokens = config_.run.sample_tokens,
         .sampling = {.temperature = config_.run.sample_temperature, .top_k = config_.run.sample_top_k},
         .key = derive_key(config_.run.seed, fmt::format("sample at step {}", completed)),
         .vocab = inputs_.tokenizer->vocab_size()});
    log_info("step {}: sample\n---\n{}\n---", completed, inputs_.tokenizer->decode(std::span(text).subspan(begin)));
  }

  const Config& config_;
  const Mesh& mesh_;
  Job& job_;
  Device& device_;
  Inputs& inputs_;
  Trainer& trainer_;
  Checkpointer& checkpoints_;
  const RunProgress begun_;
  const StopSignals signals_;
  StopDeadline grace_;  // after the signals, which it watches
  const int64_t memory_bytes_;
  StartupClock startup_;
  NodeLoader loader_;
  StepTimes times_;                       // of all steps
  double step_seconds_ = 0;               // of the last step
  std::unique_ptr<MetricsFile> metrics_;  // world rank 0
  ProgressLine progress_;
};

}  // namespace

Result<void> run_training(const PlannedJob& planned, Job& job, StartupClock startup) {
  const Config& config = planned.config;
  const Mesh& mesh = planned.mesh;
  Inputs inputs;
  if (auto agreed = agree(job, open_inputs(config, inputs)); !agreed) return agreed;
  auto device = open_planned_device(planned.plan.device, job);
  if (!device) return device.error();
  // Only a run that can start leaves a folder; the agreement is also the barrier behind which all may write into it.
  const std::string attempt = job.broadcast(new_attempt());
  std::optional<RunLock> lock;  // rank 0
  Result<void> folder;
  if (mesh.world_rank == 0) {
    auto opened = open_run_folder(planned.asked, attempt);
    if (opened)
      lock.emplace(std::move(opened).value());
    else
      folder = opened.error();
  }
  if (auto agreed = agree(job, folder); !agreed) return agreed;
  if (mesh.world_rank == 0) log_open(config.run.dir + "/log.txt");
  log_info("{}", to_string(planned.plan));
  startup.phase_done("data and device");

  Arena measuring;
  allocate_rank(config, mesh, measuring);
  Arena arena(*device.value(), measuring.used());
  startup.phase_done("arena");
  Trainer trainer(config, mesh, &job, *device.value(), arena, &startup, config.run.dir);
  log_run(config, mesh, *inputs.dataset, arena);

  Checkpointer checkpoints({.config = config,
                            .asked = planned.asked,
                            .mesh = mesh,
                            .job = job,
                            .device = *device.value(),
                            .compute = trainer.runtime().compute(),
                            .store = trainer.store().tensors(),
                            .attempt = attempt});
  trainer.set_before_update([&] { checkpoints.before_update(); });
  checkpoints.set_may_publish([&] { return lock ? lock->check() : Result<void>{}; });
  RunProgress begun;
  auto loaded = checkpoints.load();
  if (!loaded) return loaded.error();
  if (loaded.value()) {
    begun = *loaded.value();
    trainer.state_loaded();
    startup.phase_done("checkpoint");
  } else {
    trainer.make_start_values();
    startup.phase_done("start values");
  }
  if (begun.samples % config.data.global_batch != 0)
    return usage_error("data.global_batch: {} does not divide the {} samples that the run has consumed",
                       config.data.global_batch, begun.samples);
  const Result<void> metrics =
      mesh.world_rank == 0 ? begin_metrics(config.run.dir + "/metrics.jsonl", begun.steps) : Result<void>{};
  if (auto agreed = agree(job, metrics); !agreed) return agreed;
  if (begun.steps >= config.run.steps) {
    log_info("step {} of {}: the run is complete", begun.steps, config.run.steps);
    return {};
  }
  return Loop(config, mesh, job, *device.value(), inputs, trainer, checkpoints, begun, arena.used(), std::move(startup))
      .run();
}

}  // namespace tri
