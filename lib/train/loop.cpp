#include "lib/train/loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "io/base/clock.h"
#include "io/base/format.h"
#include "io/base/log.h"
#include "io/base/progress.h"
#include "io/base/random.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/no_target.h"
#include "lib/comm/host/host_traffic.h"
#include "lib/config/batch_sizes.h"
#include "lib/model/flops.h"
#include "lib/observe/metrics/step_times.h"
#include "lib/observe/status/fp8_report.h"
#include "lib/observe/status/run_summary.h"
#include "lib/train/not_finite.h"

namespace tri {
namespace {

constexpr double kLeastMemoryWait = 0.01;  // seconds; shorter waits would fill the event log

const Dataset* dataset_of(const Inputs& inputs) { return inputs.dataset ? &*inputs.dataset : nullptr; }

// Returns the windows for which the loader counts the pairs of attention.
std::vector<int> windows_of(const Config& config) {
  return config.data.document_mask ? attention_windows(config) : std::vector<int>();
}

// `trireme simulate --startup` predicts these figures for any number of ranks.
std::string startup_traffic() {
  const HostTraffic traffic = host_traffic();
  return fmt::format(
      "start-up traffic of rank 0: {} collective calls delivered {} bytes; it sent {} messages of {} bytes",
      traffic.calls, traffic.heard_bytes, traffic.messages, traffic.message_bytes);
}

}  // namespace

TrainingLoop::TrainingLoop(const LoopContext& context)
    : context_(context),
      sizes_(batch_sizes(context.trainer.engine().config())),
      last_step_(last_step(context.trainer.engine().config(), context.begun.steps, context.begun.samples)),
      rank_(context.trainer.engine().rank()),
      loader_({.config = rank_.config,
               .mesh = rank_.mesh,
               .job = &job(),
               .node_ranks = job().node_ranks(),
               .device = rank_.device,
               .dataset = dataset_of(context.inputs),
               .first_step = context.begun.steps,
               .steps = last_step_ - context.begun.steps,
               .sizes = sizes_,
               .first_sample = context.begun.samples,
               .windows = windows_of(rank_.config)}),
      evaluator_(context.trainer.engine()),
      validations_(validations_of(rank_.config, context.inputs)),
      progress_(context.begun),
      spikes_(rank_.config.optimizer.skip_spikes, context.begun.recent_steps),
      has_masks_(context.inputs.has_masked_targets(rank_.config)),
      counts_targets_(rank_.mesh.axis("pp").ends_here() && rank_.mesh.first_of_replicas()),
      metrics_(rank_.mesh.world_rank == 0 ? std::make_unique<MetricsFile>(rank_.config.run.dir + "/metrics.jsonl")
                                          : nullptr),
      ranks_({.config = rank_.config,
              .mesh = rank_.mesh,
              .job = job(),
              .gpu = rank_.device.bus_id(),
              .events = context.events,
              .metrics = metrics_.get()}),
      timeline_(context.trainer.engine(), context.events.writer().attempt, last_step_) {
  if (rank_.config.data.document_mask) documents_.emplace(rank_.config, rank_.mesh);
  std::vector<LoaderPart> parts;
  int64_t batches = 0;
  for (const Validation& validation : validations_) {
    parts.push_back(validation.part);
    batches += validation.size.batches;
  }
  if (batches > 0)
    validation_loader_ =
        std::make_unique<NodeLoader>(NodeLoaderContext{.config = rank_.config,
                                                       .mesh = rank_.mesh,
                                                       .job = &job(),
                                                       .node_ranks = job().node_ranks(),
                                                       .device = rank_.device,
                                                       .dataset = dataset_of(context.inputs),
                                                       .split = Split::kValidation,
                                                       .steps = batches * (last_step_ - context.begun.steps),
                                                       .parts = std::move(parts)});
  if (rank_.mesh.world_rank != 0) return;
  exporters_ = std::make_unique<Exporters>(Exporters::Context{.config = rank_.config,
                                                              .attempt = context.events.writer().attempt,
                                                              .completed = context.begun.steps,
                                                              .last_step = last_step_,
                                                              .memory_bytes = rank_.arena.used()});
  if (const std::string id = rank_.device.bus_id(); !id.empty()) gpu_ = std::make_unique<SensorWatch>(id);
}

std::vector<TrainingLoop::Validation> TrainingLoop::validations_of(const Config& config, const Inputs& inputs) {
  std::vector<Validation> all;
  const auto add = [&](const std::string& name, const std::optional<Dataset>& dataset, Split split, int64_t samples) {
    const EvaluationSize size = evaluation_size(config, samples, config.run.eval_batches);
    if (size.batches == 0) return;
    all.push_back({name,
                   {.dataset = dataset ? &*dataset : nullptr,
                    .split = split,
                    .batches = size.batches,
                    .num_samples = size.samples},
                   size});
  };
  add("", inputs.dataset, Split::kValidation, inputs.num_samples(Split::kValidation));
  for (const ValidationInput& input : inputs.validation)
    add(input.name, input.dataset, Split::kWhole, input.num_samples());
  return all;
}

Result<void> TrainingLoop::run() {
  const RunConfig& run = rank_.config.run;
  const auto start = Clock::now();
  context_.stop_deadline.begin_steps();
  while (progress_.steps < last_step_ && stop_ == Stop::kNo) {
    if (auto trained = train_step(); !trained) return trained;
    context_.stop_deadline.set_progress(progress_.steps, context_.checkpoints.saved_step());
    if (progress_.steps == context_.begun.steps + 1) {
      context_.startup.phase_done("first step");
      log_info("{}", context_.startup.report());
      log_info("{}", startup_traffic());
    }
    if (stop_ == Stop::kSave || (stop_ == Stop::kNo && is_checkpoint_due())) {
      const PhaseScope phase(RunPhase::kCheckpoint);
      saved_at_ = Clock::now();
      note_state();
      if (auto saved = context_.checkpoints.begin(progress_); !saved) return saved;
      account(WallTime::kCheckpoint, saved_at_);
      step_end_.reset();
    }
    if (stop_ != Stop::kNo) break;
    if (is_memory_due()) save_in_memory();
    if (is_due(run.eval_every)) evaluate();
    if (is_due(run.sample_every)) sample();
  }
  return finish(start);
}

// The state after the last step is saved on storage; a start from memory would never save it there.
bool TrainingLoop::is_memory_due() const {
  return context_.memory != nullptr && !is_last() && progress_.steps % rank_.config.checkpoint.memory_every == 0;
}

// Notes what a checkpoint of the state contains in addition to tensors.
void TrainingLoop::note_state() {
  context_.trainer.finish_update();
  progress_.fp8_history = context_.trainer.fp8_history();
  progress_.router_bias = context_.trainer.router_bias();
  progress_.recent_steps = spikes_.values();
}

void TrainingLoop::settle_memory() {
  const PhaseScope phase(RunPhase::kCheckpoint);
  const auto begun = Clock::now();
  if (context_.memory->settle() > kLeastMemoryWait) account(WallTime::kCheckpoint, begun);
}

void TrainingLoop::save_in_memory() {
  const PhaseScope phase(RunPhase::kCheckpoint);
  const auto begun = Clock::now();
  note_state();
  context_.memory->begin(progress_);
  if (seconds_between(begun, Clock::now()) > kLeastMemoryWait) account(WallTime::kCheckpoint, begun);
  step_end_.reset();
}

// Runs one step on all ranks, records its figures, and agrees on stops, saves and recordings.
Result<void> TrainingLoop::train_step() {
  const auto start = Clock::now();
  if (FlightRecorder* const recorder = flight_recorder()) recorder->begin_step(progress_.steps + 1, last_step_);
  timeline_.begin_step(progress_.steps + 1);
  const int last_samples = std::exchange(step_samples_, sizes_.at(progress_.samples));
  const double data_wait = loader_.wait_seconds();
  const int64_t data_bytes = loader_.bytes_read(), data_began = FlightRecorder::now();
  const StepTokens tokens = loader_.next();
  const std::optional<int64_t> targets = targets_of(tokens);
  const float next_targets = this->next_targets();
  timeline_.host_span("data", data_began);
  StepStatistics local = local_statistics(rank_.mesh.world_rank == 0 ? timeline_.take_request() : 0, last_samples);
  local.next_targets = next_targets;
  if (documents_) documents_->begin(tokens.pairs);
  const auto sent_at = Clock::now();
  const StepLimits limits = spikes_.limits();
  const StepResult result = run_step({.step = progress_.steps,
                                      .first_sample = progress_.samples,
                                      .targets = targets,
                                      .document_starts = tokens.document_starts},
                                     tokens, local, limits);
  next_targets_ = std::nullopt;
  if (counts_ahead()) next_targets_ = static_cast<int64_t>(result.sums.next_targets);
  const auto end = Clock::now();
  step_seconds_ = seconds_between(start, end);
  if (FlightRecorder* const recorder = flight_recorder()) recorder->end_step(static_cast<int64_t>(step_seconds_ * 1e9));
  progress_.steps += 1;
  // A generation is complete before the step after it counts, so a fault repeats at most checkpoint.memory_every steps.
  if (context_.memory != nullptr) settle_memory();
  timeline_.end_step(progress_.steps);
  timeline_.schedule(progress_.steps + 1, result.sums.steps_to_record());
  progress_.samples += step_samples_;

  const StepTimes times =
      step_times(result.timeline, result.pp_transfer_seconds, step_seconds_, loader_.wait_seconds() - data_wait);
  times_ += times;
  StepMetrics metrics = metrics_of(result, step_seconds_, times, loader_.bytes_read() - data_bytes);
  if (targets == 0) {
    metrics.no_targets = true;
    metrics.loss = metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
  }
  show(metrics, result);
  ranks_.step({.times = times,
               .timeline = result.timeline,
               .wall = step_seconds_,
               .send = result.pp_transfer_seconds,
               .before = seconds_between(step_end_.value_or(start), sent_at)},
              metrics, context_.checkpoints.under_way().has_value());
  step_end_ = end;
  save_due_ = result.sums.save_due();
  if (!result.finite())
    if (auto skipped = after_not_finite(metrics); !skipped) return skipped;
  if (targets == 0)
    after_no_targets(metrics);
  else if (result.is_spike)
    after_spike(metrics, limits);
  if (result.finite() && targets != 0) {
    skipped_in_a_row_ = 0;
    spikes_.add(result.sums.loss, static_cast<float>(result.grad_norm));
  }
  if (auto advanced = context_.checkpoints.advance(result.sums.num_saved(), result.sums.num_failed()); !advanced)
    return advanced;
  report_checkpoints();
  stop_ = answer_to_signal(result, sent_at);
  return {};
}

// An error of the config that only a step reveals leaves the state of the step before it.
StepResult TrainingLoop::run_step(const StepPlace& place, const StepTokens& tokens, const StepStatistics& local,
                                  StepLimits limits) {
  try {
    return context_.trainer.step(
        place, tokens.inputs, tokens.targets, local,
        [this] {
          context_.checkpoints.before_update();
          if (context_.memory != nullptr) context_.memory->before_update();
        },
        limits);
  } catch (const Fatal& problem) {
    if (problem.code() != ExitCode::kUsage) throw;
    const int64_t saved = context_.checkpoints.saved_step();
    throw Fatal(problem.code(), fmt::format("step {}: {}; {}", progress_.steps + 1, problem.what(),
                                            saved == 0 ? "this attempt saved no checkpoint"
                                                       : fmt::format("the last checkpoint is that of step {}", saved)));
  }
}

// Whether the sum of a step counts the targets of the next one exactly.
bool TrainingLoop::counts_ahead() const {
  return has_masks_ && int64_t{rank_.config.data.global_batch} * rank_.config.model.seq_len <= kExactTargets;
}

// Returns how many targets of this step are not masked, on all ranks; none: every token is a target, because no source
// has a mask. The first step needs a collective call. The numbers of the others are summed in the step before, so that
// no step waits for them; unless the batch is so large that f32 would round them.
std::optional<int64_t> TrainingLoop::targets_of(const StepTokens& tokens) {
  if (!has_masks_) return std::nullopt;
  if (next_targets_) return next_targets_;
  int64_t mine = 0, all = 0;
  if (counts_targets_) mine = std::ranges::count_if(tokens.targets, [](int32_t target) { return target != kNoTarget; });
  for (const int64_t of_rank : job().all_gather(mine)) all += of_rank;
  return all;
}

// Returns this rank's part of the next step's targets, for the sum of this one.
float TrainingLoop::next_targets() {
  return counts_ahead() && counts_targets_ ? static_cast<float>(loader_.next_targets()) : 0.0f;
}

// The statistics that this rank sends with the next step. `steps_to_record`: how many steps rank 0 requests to record.
// `last_samples`: the samples of the last step; 0: there was none.
StepStatistics TrainingLoop::local_statistics(int steps_to_record, int last_samples) const {
  const PartOutcome part = context_.checkpoints.part_outcome();
  StepStatistics local{.saved = part == PartOutcome::kSaved ? 1.0f : 0.0f,
                       .failed = part == PartOutcome::kFailed ? 1.0f : 0.0f};
  if (context_.signals.first()) local.stop = 1;
  if (rank_.mesh.world_rank == 0) {
    // The next step may have another size than the last one.
    const double growth = last_samples == 0 ? 1 : static_cast<double>(step_samples_) / last_samples;
    local.time_needed = static_cast<float>(growth * step_seconds_ + context_.checkpoints.seconds_needed());
    // Do not wait for a checkpoint that is still being written: slow storage delays the next one instead.
    const double minutes = rank_.config.checkpoint.every_minutes;
    const bool due = minutes > 0 && seconds_between(saved_at_, Clock::now()) >= 60 * minutes;
    local.requests = StepStatistics::pack_requests(due && !context_.checkpoints.under_way(), steps_to_record);
  }
  return local;
}

// The step changed neither weights nor moments. fault.on_nonfinite says whether the run continues without it.
Result<void> TrainingLoop::after_not_finite(const StepMetrics& metrics) {
  const FaultConfig& fault = rank_.config.fault;
  const NotFinitePlaces places = not_finite_places(context_.trainer, job());
  const bool skip = fault.on_nonfinite == OnNonfinite::kSkip && skipped_in_a_row_ < fault.max_skips;
  skipped_ += skip;
  if (metrics_) metrics_->not_finite(metrics.step, places.texts, skip ? skipped_ : 0);
  if (skip) {
    ++skipped_in_a_row_;
    if (rank_.mesh.world_rank == 0)
      log_warn(
          "step {}: loss {} and gradient norm {} are not finite; the step is skipped ({} of at most {} "
          "consecutive skips, fault.max_skips){}",
          metrics.step, metrics.loss, metrics.grad_norm, skipped_in_a_row_, fault.max_skips, to_text(places.texts));
    return {};
  }
  Error error = not_finite_error(metrics, places.texts, skipped_in_a_row_);
  // lib/supervise retries: a failure that repeats at this step is caused by the run, one that does not by a machine.
  if (rank_.mesh.world_rank == 0) {
    const std::string where = places.texts.empty() ? "" : ": " + places.texts.front();
    context_.events.append(
        {.kind = RunEventKind::kFailure,
         .world_rank = places.world_rank,
         .host = places.world_rank < 0 ? job().host() : places.host,
         .text = fmt::format("step {}: loss or gradients are not finite{}", metrics.step, where),
         .fields = {
             {"code", static_cast<int64_t>(ExitCode::kNotFinite)}, {"consequence", false}, {"step", metrics.step}}});
  }
  // The checkpoint in progress holds the state of an earlier step, from which the run can resume.
  if (context_.checkpoints.under_way())
    if (auto saved = context_.checkpoints.finish(); !saved) error.message += "\n" + saved.error().message;
  report_checkpoints();
  return error;
}

// The step changed neither weights nor moments.
void TrainingLoop::after_spike(const StepMetrics& metrics, const StepLimits& limits) {
  ++skipped_spikes_;
  if (rank_.mesh.world_rank != 0) return;
  metrics_->spike(metrics.step, limits.loss, limits.grad_norm, skipped_spikes_);
  log_warn(
      "step {}: loss {:.4f} or gradient norm {:.3f} is above {:.4f} or {:.3f}, the limits of optimizer.skip_spikes; "
      "the step is skipped",
      metrics.step, metrics.loss, metrics.grad_norm, limits.loss, limits.grad_norm);
}

// The step changed neither weights nor moments.
void TrainingLoop::after_no_targets(const StepMetrics& metrics) {
  ++skipped_without_targets_;
  if (rank_.mesh.world_rank == 0)
    log_warn(
        "step {}: the loss masks of data.sources exclude every token of its {}; the step is skipped. Raise "
        "data.global_batch if this happens often",
        metrics.step, counted(step_samples_, "sample"));
}

StepMetrics TrainingLoop::metrics_of(const StepResult& result, double seconds, const StepTimes& times,
                                     int64_t data_bytes) {
  const Config& config = rank_.config;
  const double step_tokens = static_cast<double>(step_samples_) * config.model.seq_len;
  std::optional<DocumentWork::OfStep> documents;
  if (documents_) {
    documents = documents_->end(step_tokens);
    ranks_.add_documents(documents->band_pairs, step_tokens);
  }
  const auto tflops_per_rank = [&](AttentionWork work) {
    const double flops = !documents                     ? model_flops_per_token(config, work) * step_tokens
                         : work == AttentionWork::kBand ? documents->band_flops
                                                        : documents->causal_flops;
    return flops / seconds / rank_.mesh.world_size() / 1e12;
  };
  const double tflops = tflops_per_rank(AttentionWork::kBand);
  const std::optional<double> peak = rank_.device.peak_tflops(config.precision.compute);
  const std::optional<double> fp8_peak = any_fp8_layer(config) ? rank_.device.peak_tflops(Dtype::kE4M3) : std::nullopt;
  return {.step = progress_.steps,
          .samples = progress_.samples,
          .tokens = progress_.samples * config.model.seq_len,
          .loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = result.learning_rate,
          .step_ms = seconds * 1e3,
          .tokens_per_s = step_tokens / seconds,
          .tflops_per_rank = tflops,
          .mfu = peak ? std::optional(tflops / *peak) : std::nullopt,
          .mfu_causal = peak ? std::optional(tflops_per_rank(AttentionWork::kCausal) / *peak) : std::nullopt,
          .mfu_fp8 = fp8_peak ? std::optional(tflops / *fp8_peak) : std::nullopt,
          .imbalance = documents ? std::optional(documents->imbalance) : std::nullopt,
          .times = times,
          .data_bytes = data_bytes,
          .gpu = gpu_ ? gpu_->newest() : std::nullopt};
}

// World rank 0: writes a line of metrics.jsonl and updates the console line, which stays every metrics.log_every steps
// and on FP8 warnings. Warnings of experts, which last for many steps, do not make it stay.
void TrainingLoop::show(const StepMetrics& metrics, const StepResult& result) {
  if (!metrics_) return;
  const Config& config = rank_.config;
  metrics_->step(metrics);
  exporters_->step(metrics);
  const std::string losses = result.fp8.empty() ? "" : fp8_warning(config, result.fp8);
  const int every = config.metrics.fp8_every;
  if (!result.fp8.empty() && every > 0 && (metrics.step % every == 0 || is_last()))
    metrics_->fp8(fp8_json(metrics.step, config, result.fp8));
  const std::string imbalance = show_experts(metrics.step, result);
  const bool keep = metrics.step % config.metrics.log_every == 0 || is_last() || !result.finite() || !losses.empty();
  std::optional<double> remaining;  // steps like this one
  if (!sizes_.is_constant())
    remaining = static_cast<double>(sizes_.after(progress_.samples, last_step_ - progress_.steps) - progress_.samples) /
                step_samples_;
  std::string line = console_line(metrics, last_step_, rank_.arena.used(), remaining);
  for (const std::string& warning : {losses, imbalance})
    if (!warning.empty()) line += "  " + warning;
  progress_line_.show(line, keep);
}

// World rank 0: writes the balance of the experts of a step. Returns a warning if it stays bad; else "".
std::string TrainingLoop::show_experts(int64_t step, const StepResult& result) {
  if (result.routers.empty()) return "";
  const Config& config = rank_.config;
  const std::vector<ExpertBalance> balances = balances_of(config, result.routers);
  exporters_->experts(step, balances);
  const int every = config.metrics.experts_every;
  if (every > 0 && (step % every == 0 || is_last())) metrics_->experts(expert_json(step, config, result.routers));
  return expert_watch_.take(balances);
}

// Decides how all ranks react to a stop signal, from numbers that are identical on all of them. Collective.
TrainingLoop::Stop TrainingLoop::answer_to_signal(const StepResult& result, Clock::time_point sent_at) {
  if (result.sums.stop == 0) return Stop::kNo;
  // The deadline counts from the first signal: ranks may receive it at different times.
  const double stop_age = oldest_stop_age(job(), context_.signals.first(), sent_at),
               time_needed = result.sums.time_needed;
  context_.stop_deadline.count_from(
      sent_at - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(stop_age)));
  const double grace = rank_.config.fault.grace_seconds;
  const bool enough = StopDeadline::enough(grace, stop_age, time_needed);
  const std::optional<int64_t> under_way = context_.checkpoints.under_way();
  if (!enough && rank_.mesh.world_rank == 0)
    log_warn(
        "fault.grace_seconds: {:g} s is too short: {:.1f} s had passed when all ranks knew of the stop signal, and a "
        "step and a checkpoint take about {:.1f} s{}",
        grace, stop_age, time_needed,
        under_way ? fmt::format("; only the checkpoint of step {}, which is being written, is completed", *under_way)
                  : "");
  if (!enough && under_way) return Stop::kLeave;
  log_info("received a stop signal: the run saves the state after step {}, then ends; a second SIGINT ends it at once",
           progress_.steps);
  return Stop::kSave;
}

// World rank 0: reports the checkpoints that were published since the last call.
void TrainingLoop::report_checkpoints() {
  for (const CheckpointStats& stats : context_.checkpoints.published()) {
    metrics_->checkpoint(stats.step, stats.bytes, stats.stall_seconds, stats.seconds);
    exporters_->checkpoint(stats.step, stats.bytes, stats.stall_seconds, stats.seconds);
    // A checkpoint that ranks have written is published after the step, evaluation or sample in progress.
    const double rate = static_cast<double>(stats.bytes) / std::max(stats.slowest_seconds, 1e-9);
    log_info(
        "checkpoint of step {}: {}, training waited {:.0f} ms; slowest rank {} wrote for {} ({}/s in all); "
        "published after {}",
        stats.step, format_bytes(stats.bytes), 1e3 * stats.stall_seconds, stats.slowest_rank,
        format_duration(stats.slowest_seconds), format_bytes(static_cast<int64_t>(rate)),
        format_duration(stats.seconds));
    if (stats.behind)
      log_warn(
          "checkpoint of step {}: the previous one was still being written, so training waited for it; storage is "
          "too slow for checkpoint.every {}",
          stats.step, rank_.config.checkpoint.every);
  }
}

// World rank 0: posts the time from `since` to now, in which no step was made.
void TrainingLoop::account(WallTime what, Clock::time_point since) const {
  if (rank_.mesh.world_rank != 0) return;
  context_.events.post(RunEventKind::kSpan, "",
                       {{"what", std::string(enum_name(what))},
                        {"seconds", seconds_between(since, Clock::now())},
                        {"step", progress_.steps}});
}

void TrainingLoop::evaluate() {
  if (!validation_loader_) return;
  const PhaseScope phase(RunPhase::kEvaluation);
  step_end_.reset();
  const auto start = Clock::now();
  std::vector<std::pair<std::string, double>> losses;  // by name
  for (Validation& validation : validations_) {
    const Evaluation result = evaluator_.evaluate(
        validation.size, [this] { return validation_loader_->next(); }, context_.inputs.tokenizer.get(),
        tick_flight_recorder);
    if (rank_.mesh.world_rank != 0) continue;
    if (result.tokens == 0) {
      if (!std::exchange(validation.warned, true))
        log_warn(
            "{}: loss masks exclude every token of the {} of an evaluation; its loss is omitted. Raise "
            "run.eval_batches if there are more, or evaluate other files",
            validation.name.empty() ? "data.validation_fraction" : "data.validation: " + validation.name,
            counted(result.samples, "sample"));
      continue;
    }
    if (validation.name.empty()) {
      metrics_->evaluation(progress_.steps, result.loss);
      exporters_->evaluation(progress_.steps, result.loss);
    } else {
      losses.emplace_back(validation.name, result.loss);
    }
    const std::string per_byte = result.bytes > 0 ? fmt::format(", {:.3f} per byte", result.perplexity_per_byte()) : "";
    log_info("step {}: validation loss {}{:.4f} nats/token, perplexity {:.3f} per token{}, over {} samples",
             progress_.steps, validation.name.empty() ? "" : fmt::format("of {} ", validation.name), result.loss,
             result.perplexity(), per_byte, result.samples);
  }
  if (rank_.mesh.world_rank != 0) return;
  if (!losses.empty()) {
    metrics_->evaluation(progress_.steps, losses);
    exporters_->evaluation(progress_.steps, losses);
  }
  account(WallTime::kEvaluation, start);
}

void TrainingLoop::sample() {
  const RunConfig& run = rank_.config.run;
  const Tokenizer& tokenizer = *context_.inputs.tokenizer;
  if (run.sample_tokens == 0) return;
  const PhaseScope phase(RunPhase::kSample);
  step_end_.reset();
  const auto start = Clock::now();
  std::vector<int32_t> prompt = tokenizer.encode(run.sample_prompt);
  const size_t begin = prompt.empty() ? 1 : 0;
  if (prompt.empty()) prompt.push_back(tokenizer.eod());  // as at the beginning of a document
  const auto text = evaluator_.generate(std::move(prompt),
                                        {.tokens = run.sample_tokens,
                                         .sampling = {.temperature = run.sample_temperature, .top_k = run.sample_top_k},
                                         .key = derive_key(run.seed, fmt::format("sample at step {}", progress_.steps)),
                                         .vocab = tokenizer.vocab_size(),
                                         .on_token = [](std::span<const int32_t>) { tick_flight_recorder(); }});
  log_info("step {}: sample\n---\n{}\n---", progress_.steps, tokenizer.decode(std::span(text).subspan(begin)));
  account(WallTime::kEvaluation, start);
}

// After the last collective call of the loop: waits for storage to accept the files of the run that other programs
// read. If storage stalls, these files lose their last entries, but the run still ends. After a stop signal the wait is
// short, since the scheduler may end the processes soon.
void TrainingLoop::flush_shown_files() {
  constexpr double kLongestSeconds = 10, kStoppedSeconds = 1, kShareOfDeadline = 0.25;
  const FaultConfig& fault = rank_.config.fault;
  const bool stopped = stop_ != Stop::kNo || context_.signals.received() != 0;
  const double seconds = std::min(stopped ? kStoppedSeconds : kLongestSeconds,
                                  kShareOfDeadline * std::min(fault.setup_seconds, fault.checkpoint_seconds));
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  const HostScope awaits_storage(HostState::kAwaitsCheckpoint);
  constexpr std::chrono::milliseconds kRound{500};
  bool done = false;
  for (; !done && Clock::now() < until; tick_flight_recorder())
    done = (!exporters_ || exporters_->flush(kRound)) && ranks_.flush(kRound) && timeline_.flush(kRound);
  if (!done)
    log_warn(
        "storage did not accept the last entries of TensorBoard's event file, ranks.h5 or the timeline within {:.0f} s",
        seconds);
}

// After the last step of a run that began at `start`: completes the checkpoint in progress and logs the summary. If a
// signal stopped the run, the error lists the steps that are saved.
Result<void> TrainingLoop::finish(Clock::time_point start) {
  const PhaseScope phase(RunPhase::kFinish);
  const auto stepped = Clock::now();
  const bool waits = context_.checkpoints.under_way().has_value();
  if (auto finished = context_.checkpoints.finish(); !finished) return finished;
  if (waits) account(WallTime::kCheckpoint, stepped);
  context_.stop_deadline.cancel();
  report_checkpoints();
  ranks_.finish();
  if (metrics_) {
    const HostScope awaits_storage(HostState::kAwaitsCheckpoint);
    metrics_->finish();
  }
  log_summary(job(), rank_.mesh, times_, context_.trainer.runtime().times(), seconds_between(start, Clock::now()));
  log_data(job(), rank_.mesh, loader_.bytes_read(), progress_.steps - context_.begun.steps);
  if (skipped_spikes_ > 0)
    log_info("{} of these steps were skipped because of spikes (optimizer.skip_spikes)", skipped_spikes_);
  if (skipped_without_targets_ > 0)
    log_info("{} of these steps were skipped because loss masks excluded all of their tokens",
             skipped_without_targets_);
  if (skipped_ > 0)
    log_info("{} of these steps were skipped because their loss or gradients were not finite", skipped_);
  flush_shown_files();
  if (stop_ == Stop::kLeave)
    return Error{fmt::format("stopped by a signal after step {} of {}; there was no time to save a checkpoint, so the "
                             "steps after {} ARE LOST: re-run the job, with a larger fault.grace_seconds if the site "
                             "allows it",
                             progress_.steps, last_step_, context_.checkpoints.saved_step()),
                 ExitCode::kDrained};
  if (stop_ == Stop::kSave && !is_last())
    return Error{
        fmt::format("stopped by a signal after step {} of {}; the checkpoint is saved: re-run the job to continue",
                    progress_.steps, last_step_),
        ExitCode::kDrained};
  return {};
}

}  // namespace tri
