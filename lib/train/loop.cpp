#include "lib/train/loop.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "io/base/log.h"
#include "io/base/random.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/run_lock.h"
#include "io/tokens/prepare.h"
#include "io/tokens/tokenizer.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/model/flops.h"
#include "lib/observe/metrics.h"
#include "lib/observe/report.h"
#include "lib/train/grace.h"
#include "lib/train/sampling.h"
#include "lib/train/stop_signals.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What a rank reads: token files and the tokenizer that names their tokens.
struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Dataset> dataset;
};

Result<void> open_inputs(const Config& config, Inputs& inputs) {
  if (config.data.sources.empty())
    return usage_error("data.sources: training needs at least one token file; make one with `trireme data prepare`");
  auto tokenizer = open_tokenizer(config.data.tokenizer);
  if (!tokenizer) return tokenizer.error();
  inputs.tokenizer = std::move(tokenizer).value();
  if (inputs.tokenizer->vocab_size() > config.model.vocab)
    return usage_error("model.vocab: {} is smaller than the {} tokens of data.tokenizer {}; set model.vocab: {}",
                       config.model.vocab, inputs.tokenizer->vocab_size(), config.data.tokenizer,
                       inputs.tokenizer->vocab_size());
  for (const Source& source : config.data.sources) {
    const auto made_with = prepared_with(source.path);
    if (!made_with) return made_with.error();
    if (!made_with.value().empty() && made_with.value() != inputs.tokenizer->fingerprint())
      return usage_error("data.tokenizer: {} is {}, but {} was prepared with {}; set data.tokenizer to that one",
                         config.data.tokenizer, inputs.tokenizer->fingerprint(), source.path, made_with.value());
  }
  std::vector<SourceSpec> sources;
  for (const Source& source : config.data.sources) sources.push_back({source.path, source.weight});
  auto dataset = Dataset::open(sources, config.model.seq_len, config.data.validation_fraction, config.data.seed,
                               config.model.vocab);
  if (!dataset) return dataset.error();
  inputs.dataset = std::move(dataset).value();
  return {};
}

// The run's folder, locked against other jobs, with its config. For one rank.
Result<RunLock> open_run_folder(const Config& config, const std::string& attempt) {
  std::error_code problem;
  std::filesystem::create_directories(config.run.dir, problem);
  if (problem) return file_error("run.dir {}: {}", config.run.dir, problem.message());
  auto lock = RunLock::take(config.run.dir, attempt);
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
  Loop(const Config& config, const Mesh& mesh, Job& job, const Device& device, Inputs& inputs, Trainer& trainer,
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
        batch_shape_{.global_batch = config.data.global_batch,
                     .micro_batch = config.data.micro_batch,
                     .dp_rank = mesh.dp.rank,
                     .dp_size = mesh.dp.size},
        loader_(*inputs.dataset, Split::kTrain, batch_shape_, begun.samples / config.data.global_batch,
                config.data.prefetch) {
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
    log_summary(job_, mesh_, trainer_.runtime().times(), loader_.wait_seconds(), seconds_since(start));
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
    }
  }

  // What all ranks make of a stop signal, from numbers that are the same on all of them.
  Stop answer_to_signal(const StepResult& result, Clock::time_point flags_sent) {
    if (result.stop == 0) return Stop::kNo;
    grace_.agreed(flags_sent -
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(result.stop_age)));
    const double grace = config_.fault.grace_seconds;
    const bool enough = Grace::enough(grace, result.stop_age, result.time_needed);
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
    const std::optional<StreamTimes> before = trainer_.runtime().compute().times();
    const Batch& batch = loader_.next();
    RankFlags flags = checkpoints_.flags();
    if (const auto signalled = signals_.first()) {
      flags.stop = true;
      flags.stop_age = static_cast<float>(seconds_since(*signalled));
    }
    flags.time_needed = static_cast<float>(step_seconds_ + checkpoints_.seconds_needed());
    const auto flags_sent = Clock::now();
    const StepResult result = trainer_.step(step, batch.inputs, batch.targets, flags);
    const double seconds = seconds_since(start);
    step_seconds_ = seconds;
    const std::optional<StreamTimes> after = trainer_.runtime().compute().times();

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
                        .data_ms = (loader_.wait_seconds() - waited) * 1e3};
    if (before && after) {
      metrics.compute_ms = (after->busy - before->busy) * 1e3;
      metrics.wait_ms = (after->waiting - before->waiting) * 1e3;
    }
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
    std::string mine;
    if (!names.empty()) {
      mine = fmt::format("  rank {} [{}]: {}", mesh_.world_rank, mesh_.place(), names.front());
      if (names.size() > 1) mine += fmt::format(" and {} more", names.size() - 1);
    }
    std::string report =
        fmt::format("step {}: loss {} and gradient norm {} are not finite; stopped before the next step", metrics.step,
                    metrics.loss, metrics.grad_norm);
    for (const std::string& text : job_.gather(mine))
      if (!text.empty()) report += "\n" + text;
    return Error{job_.broadcast(report) + "\nLower lr.peak, raise lr.warmup_steps, or look at the data of this step.",
                 ExitCode::kNotFinite};
  }

  void evaluate(int64_t completed) {
    const int64_t available = inputs_.dataset->num_samples(Split::kValidation) / config_.data.global_batch;
    // With fewer validation samples than one batch, samples repeat: still every one is seen.
    const int64_t batches = std::min<int64_t>(config_.run.eval_batches, std::max<int64_t>(available, 1));
    if (batches == 0 || inputs_.dataset->num_samples(Split::kValidation) == 0) return;
    double sum = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const Batch batch = make_batch(*inputs_.dataset, Split::kValidation, i, batch_shape_);
      sum += trainer_.evaluate(batch.inputs, batch.targets);
    }
    const double loss = sum / static_cast<double>(batches);
    if (mesh_.world_rank != 0) return;
    const BatchShape whole{.global_batch = config_.data.global_batch, .micro_batch = 1};  // every dp rank's samples
    double bytes = 0, tokens = 0;
    for (int64_t i = 0; i < batches; ++i)
      for (const int32_t token : make_batch(*inputs_.dataset, Split::kValidation, i, whole).targets) {
        bytes += inputs_.tokenizer->token_bytes(token);
        tokens += 1;
      }
    metrics_->evaluation(completed, loss);
    log_info(
        "step {}: validation loss {:.4f} nats/token, perplexity {:.3f} per token, {:.3f} per byte, over {} "
        "samples",
        completed, loss, std::exp(loss), std::exp(loss * tokens / std::max(bytes, 1.0)),
        batches * config_.data.global_batch);
  }

  void sample(int64_t completed) {
    if (config_.run.sample_tokens == 0) return;
    std::vector<int32_t> text = inputs_.tokenizer->encode(config_.run.sample_prompt);
    const size_t prompt = text.size();
    if (text.empty()) text.push_back(inputs_.tokenizer->eod());  // as if a document began
    const size_t begin = prompt == 0 ? 1 : 0;
    const uint64_t key = derive_key(config_.run.seed, fmt::format("sample at step {}", completed));
    const int root = mesh_.rank_at(mesh_.pp.size - 1, 0, 0);
    for (int i = 0; i < config_.run.sample_tokens; ++i) {
      const size_t window = std::min(text.size(), static_cast<size_t>(config_.model.seq_len));
      const std::vector<float> logits = trainer_.next_token_logits(std::span(text).subspan(text.size() - window));
      int32_t token = 0;
      if (mesh_.world_rank == root)
        token = sample_token(std::span(logits).first(static_cast<size_t>(inputs_.tokenizer->vocab_size())),
                             config_.run.sample_temperature, config_.run.sample_top_k,
                             random_uniform(key, static_cast<uint64_t>(i)));
      text.push_back(trainer_.broadcast_token(token, root));
    }
    log_info("step {}: sample\n---\n{}\n---", completed, inputs_.tokenizer->decode(std::span(text).subspan(begin)));
  }

  const Config& config_;
  const Mesh& mesh_;
  Job& job_;
  const Device& device_;
  Inputs& inputs_;
  Trainer& trainer_;
  Checkpointer& checkpoints_;
  const RunProgress begun_;
  const StopSignals signals_;
  Grace grace_;  // after the signals, which it watches
  const int64_t memory_bytes_;
  StartupClock startup_;
  const BatchShape batch_shape_;
  Loader loader_;
  double step_seconds_ = 0;               // of the last step
  std::unique_ptr<MetricsFile> metrics_;  // world rank 0
  ProgressLine progress_;
};

}  // namespace

Result<void> run_training(const Config& config, const Mesh& mesh, Job& job, StartupClock startup) {
  Inputs inputs;
  if (auto agreed = agree(job, open_inputs(config, inputs)); !agreed) return agreed;
  auto device = open_device(device_kind(config.run.device), job.node_rank());
  if (auto agreed = agree(job, device ? Result<void>{} : Result<void>(device.error())); !agreed) return agreed;
  // Only a run that can start leaves a folder; the agreement is also the barrier behind which all may write into it.
  const std::string attempt = job.broadcast(new_attempt());
  std::optional<RunLock> lock;  // rank 0
  Result<void> folder;
  if (mesh.world_rank == 0) {
    auto opened = open_run_folder(config, attempt);
    if (opened)
      lock.emplace(std::move(opened).value());
    else
      folder = opened.error();
  }
  if (auto agreed = agree(job, folder); !agreed) return agreed;
  if (mesh.world_rank == 0) log_open(config.run.dir + "/log.txt");
  startup.phase_done("data and device");

  Arena measuring;
  allocate_rank(config, mesh, measuring);
  Arena arena(*device.value(), measuring.used());
  startup.phase_done("arena");
  Trainer trainer(config, mesh, &job, *device.value(), arena, &startup, config.run.dir + "/gemm_algorithms.txt");
  log_run(config, mesh, *inputs.dataset, arena);

  Checkpointer checkpoints(config, mesh, job, *device.value(), trainer.runtime().compute(), trainer.store().tensors(),
                           attempt);
  trainer.set_before_update([&] { checkpoints.before_update(); });
  RunProgress begun;
  auto loaded = checkpoints.load();
  if (!loaded) return loaded.error();
  if (loaded.value()) {
    begun = *loaded.value();
    trainer.state_loaded();
    startup.phase_done("checkpoint");
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
