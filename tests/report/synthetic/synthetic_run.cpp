#include "tests/report/synthetic/synthetic_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "io/ranks/ranks_file.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/events.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/status/expert_report.h"
#include "tests/fault/simulated_job.h"

namespace tri {
namespace {

constexpr double kEpoch = 1763800000, kStepSeconds = 2.5, kStartupSeconds = 40, kAwaySeconds = 90;

class Writer {
 public:
  Writer(std::string dir, const SyntheticRun& run) : dir_(std::move(dir)), run_(run), random_(run.seed) {
    std::filesystem::create_directories(dir_);
    metrics_.open(dir_ + "/metrics.jsonl");
    events_.open(dir_ + "/events.jsonl");
  }

  void write() {
    config(false);
    begin(0);
    const int64_t stretch = run_.steps / (run_.restarts + 1);
    for (int64_t step = 1; step <= run_.steps; ++step) {
      one_step(step);
      const bool breaks = restarts_ < run_.restarts && step == stretch * (restarts_ + 1);
      if (breaks) {
        step -= std::min(step - 1, run_.lost_steps);
        restart(step);
      }
    }
    event({.kind = RunEventKind::kEnd, .fields = {{"code", int64_t{0}}}});
    config(run_.restarts > 0);
    if (run_.windows > 0) ranks();
    metrics_.close();
    events_.close();
    if (!metrics_ || !events_) throw Fatal(ExitCode::kFile, dir_ + ": can't be written");
  }

 private:
  double noise(double size) { return size * normal_(random_); }
  int world_size() const { return grid_of(run_).world_size(); }

  void event(RunEvent event) {
    event.time = now_;
    event.attempt = fmt::format("20251122T0000{:02}-synthetic", restarts_);
    event.job = "4711";
    if (event.host.empty()) event.host = "node0001";
    events_ << to_json(event) << '\n';
  }

  void begin(int64_t step) {
    event({.kind = RunEventKind::kBegin, .world_rank = 0, .fields = {{"began", now_}}});
    now_ += kStartupSeconds;
    RunEvent start{.kind = RunEventKind::kStart, .world_rank = 0};
    start.fields = {{"ranks", int64_t{world_size()}},
                    {"step", step},
                    {"steps", run_.steps},
                    {"metrics_bytes", static_cast<int64_t>(metrics_.tellp())},
                    {"startup.mpi", 12.0},
                    {"startup.checkpoint", 20.0},
                    {"version", std::string("0.1.0, commit 0123456789ab")}};
    if (restarts_ == 1) {
      start.fields["before.lr.peak"] = fmt::format("{}", run_.peak_lr);
      start.fields["after.lr.peak"] = fmt::format("{}", run_.peak_lr / 2);
    }
    event(start);
  }

  void restart(int64_t step) {
    RunEvent failure{
        .kind = RunEventKind::kFailure, .world_rank = 3, .host = "node0007", .text = "the GPU is lost (XID 79)"};
    failure.fields = {{"code", int64_t{4}}, {"consequence", false}, {"gpu", std::string("0000:18:00.0")}};
    event(failure);
    failure = {.kind = RunEventKind::kFailure, .world_rank = 4, .host = "node0007", .text = "a peer is gone"};
    failure.fields = {{"code", int64_t{5}}, {"consequence", true}};
    event(failure);
    now_ += kAwaySeconds;
    ++restarts_;
    metrics_ << fmt::format(R"({{"restart":{},"step":{},"lost_steps":{},"time":{:.3f}}})", restarts_, step,
                            run_.lost_steps, now_)
             << '\n';
    begin(step);
  }

  void one_step(int64_t step) {
    const double share = static_cast<double>(step) / static_cast<double>(run_.steps);
    const double seconds = kStepSeconds * (1 + std::abs(noise(0.01)));
    now_ += seconds;
    StepMetrics m{.step = step, .samples = 1024 * step, .tokens = 1024 * 2048 * step};
    m.loss = 1.8 + 9 * std::exp(-40 * share) + 0.8 * std::exp(-4 * share) + noise(0.02);
    m.grad_norm = 0.4 + 3 * std::exp(-30 * share) + std::abs(noise(0.05));
    m.learning_rate = run_.peak_lr * std::min(1.0, 50 * share) * (0.55 + 0.45 * std::cos(3.14159 * share));
    m.step_ms = 1e3 * seconds;
    m.tokens_per_s = 1024 * 2048 / seconds;
    m.tflops_per_rank = 540 * kStepSeconds / seconds;
    m.mfu = m.tflops_per_rank / 989;
    m.times = {.compute = 0.7 * seconds,
               .tp = 0.08 * seconds,
               .pp = 0.02 * seconds,
               .dp = 0.05 * seconds,
               .bubble = 0.1 * seconds,
               .optimizer = 0.03 * seconds,
               .data = 0.005 * seconds,
               .other = 0.015 * seconds};
    m.gpu = GpuSensors{.sm_mhz = static_cast<unsigned>(1470 + step % 20),
                       .celsius = 61,
                       .milliwatts = static_cast<unsigned>(690000 + 1000 * (step % 9)),
                       .memory_bytes = uint64_t{71} << 30};
    with_time(json_line(m));
    if (run_.experts > 0 && step % std::max<int64_t>(1, run_.steps / 40) == 0) experts(step, share);
    if (step % run_.evaluate_every == 0) {
      event({.kind = RunEventKind::kSpan, .fields = {{"what", std::string("evaluation")}, {"seconds", 6.0}}});
      with_time(fmt::format(R"({{"step":{},"validation_loss":{:.6f}}})", step, m.loss + 0.03 + noise(0.005)));
      now_ += 6;
    }
    if (step % run_.checkpoint_every != 0) return;
    const double stall = 0.4 + std::abs(noise(0.1)), written = 45 + noise(4);
    with_time(fmt::format(R"({{"step":{},"checkpoint_bytes":{},"checkpoint_stall_ms":{:.3f},"checkpoint_ms":{:.3f}}})",
                          step, int64_t{3} << 40, 1e3 * stall, 1e3 * written));
    event({.kind = RunEventKind::kSpan,
           .fields = {{"what", std::string("checkpoint")}, {"seconds", stall}, {"step", step}}});
    now_ += stall;
  }

  void experts(int64_t step, double share) {
    Config config;
    config.model.dense_layers = 1;
    std::vector<RouterNumbers> layers(static_cast<size_t>(run_.expert_layers));
    for (RouterNumbers& layer : layers) {
      layer.load.resize(static_cast<size_t>(run_.experts));
      for (float& load : layer.load) load = static_cast<float>(std::round(1000 * std::exp(noise(0.4) * (1.2 - share))));
      layer.load.back() = 0;
    }
    layers.back().load.front() = static_cast<float>(std::round(1000 + 5000 * share));
    with_time(expert_json(step, config, layers));
  }

  void with_time(const std::string& object) {
    metrics_ << object.substr(0, object.size() - 1) << fmt::format(",\"time\":{:.3f}}}\n", now_);
  }

  void config(bool changed) {
    std::ofstream(dir_ + "/resolved.yaml") << fmt::format(
        "run:\n  name: \"{}\"\n  steps: {}\n  device: cuda\nmodel:\n  layers: 96\n  hidden: 12288\n  heads: 96\n"
        "  kv_heads: 96\n  ffn_hidden: 49152\n  vocab: 51200\n  seq_len: 2048\n  norm: layernorm\n  activation: gelu\n"
        "data:\n  sources: [\"data/web\", \"data/code\"]\n  global_batch: 1024\n  micro_batch: 1\nparallel:\n  tp: {}\n"
        "  pp: {}\n  dp: {}\n  chunks: 6\n  schedule: interleaved\n  zero: 2\nprecision:\n  compute: bf16\n"
        "optimizer:\n  name: adamw\nlr:\n  rule: cosine\n  peak: {}\n",
        run_.name, run_.steps, run_.tp, run_.pp, run_.dp, changed ? run_.peak_lr / 2 : run_.peak_lr);
  }

  void ranks() {
    RankMesh mesh{.attempt = "20251122T000000-synthetic", .grid = grid_of(run_)};
    mesh.schedule = "interleaved";
    mesh.num_microbatches = 16;
    mesh.chunks = 6;
    mesh.stage_flops.assign(static_cast<size_t>(run_.pp), 1e15);
    mesh.stage_flops.back() *= 1.05;
    for (int rank = 0; rank < world_size(); ++rank)
      mesh.places.push_back(
          {.host = fmt::format("node{:04}", rank / 8), .gpu = fmt::format("0000:{:x}8:00.0", rank % 8 + 1)});
    auto writer = value_or_throw(RanksWriter::open(dir_ + "/ranks.h5", mesh));
    for (int64_t w = 0; w < run_.windows; ++w) {
      RankWindow window{.first_step = w * run_.steps / run_.windows + 1,
                        .last_step = (w + 1) * run_.steps / run_.windows};
      window.time = kEpoch + (now_ - kEpoch) * static_cast<double>(w + 1) / static_cast<double>(run_.windows);
      for (int rank = 0; rank < world_size(); ++rank)
        window.ranks.push_back(times_of(mesh, rank, 2 * w >= run_.windows));
      value_or_throw(writer.append(window));
    }
  }

  RankTimes times_of(const RankMesh& mesh, int rank, bool late) {
    const double head = mesh.stage_of(rank) == mesh.stages() - 1 ? 1.05 : 1;
    const double slow = rank == run_.slow_rank && late ? 1.2 : 1;
    RankTimes times;
    const auto set = [&](RankQuantity quantity, double seconds) {
      times[quantity] = static_cast<float>(std::max(0.0, seconds));
    };
    const double forward = 0.6 * head * slow * (1 + noise(0.005)), backward = 1.15 * head * slow * (1 + noise(0.005));
    set(RankQuantity::kStep, kStepSeconds);
    set(RankQuantity::kForward, forward);
    set(RankQuantity::kBackward, backward);
    set(RankQuantity::kCompute, forward + backward);
    set(RankQuantity::kOptimizer, 0.07);
    set(RankQuantity::kTp, 0.2 + noise(0.01));
    set(RankQuantity::kPp, 0.05);
    set(RankQuantity::kDp, slow > 1 ? 0.01 : 0.12 + noise(0.01));
    set(RankQuantity::kBubble, std::max(0.0, 0.25 - 0.02 * mesh.stage_of(rank) + noise(0.01)));
    set(RankQuantity::kSend, 0.001);
    set(RankQuantity::kLaunch, 2.0 * slow * (1 + noise(0.004)));
    return times;
  }

  std::string dir_;
  const SyntheticRun run_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::ofstream metrics_, events_;
  double now_ = kEpoch;
  int restarts_ = 0;
};

}  // namespace

std::vector<RankRecord> records_of_stopped_job() {
  SimulatedJob job({.pp = 2, .dp = 2, .tp = 2});
  const int64_t all = job.run({}, 1);
  job.run({SimulatedFaultKind::kStopped, kStoppedRank, all / 2}, 1);
  auto records = job.records();
  for (RankRecord& record : records)
    if (record.world_rank == kStoppedRank) record.process_state = ProcessState::kStopped;
  return records;
}

RankGrid grid_of(const SyntheticRun& run) {
  RankGrid grid = unnamed_grid(run.pp, run.dp, run.tp);
  if (run.x > 1) grid.axes.push_back({"x", run.x});
  return grid;
}

void write_synthetic_run(const std::string& dir, const SyntheticRun& run) {
  Writer(dir, run).write();
  if (!run.hang) return;
  auto records = records_of_stopped_job();
  if (run.x > 1)
    for (RankRecord& record : records) record.grid = grid_of(run);
  const HangTrigger trigger{.world_rank = 0, .seconds = 60};
  const auto dump = value_or_throw(join_dump(dir, "attempt", 1, trigger));
  for (const RankRecord& record : records) value_or_throw(write_record(dump.path, record));
  value_or_throw(write_report(dump.path, records, trigger, locate_hang(records, trigger)));
}

}  // namespace tri
