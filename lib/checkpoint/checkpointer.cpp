#include "lib/checkpoint/checkpointer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "io/base/log.h"
#include "io/base/parallel.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/shard_writer.h"
#include "lib/checkpoint/weights.h"
#include "lib/observe/metrics.h"

namespace tri {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string error_text(const Result<void>& result) { return result ? "" : result.error().message; }

}  // namespace

// Pieces that this rank writes and that lie together on the device, padding between them included: one copy.
struct Checkpointer::Run {
  const char* from = nullptr;
  int64_t host_offset = 0, bytes = 0;
};

Checkpointer::Checkpointer(const Config& config, const Mesh& mesh, Job& job, Device& device, Stream& compute,
                           const StoreTensors& store, const std::string& attempt)
    : config_(config),
      mesh_(mesh),
      job_(job),
      device_(device),
      compute_(compute),
      dir_(config.checkpoint.dir),
      attempt_(attempt),
      pieces_(state_pieces(config, mesh, store)),
      host_offset_(pieces_.size(), -1),
      stream_(device.make_stream("checkpoint")),
      state_ready_(device.make_event()),
      copied_(device.make_event()) {
  std::vector<size_t> order;
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].writes) order.push_back(i);
  const auto address = [&](size_t i) { return static_cast<const char*>(pieces_[i].memory.data); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return address(a) < address(b); });
  constexpr int64_t kMostPadding = 4096;
  int64_t total = 0;
  for (const size_t i : order) {
    const char* from = address(i);
    if (runs_.empty() || from - (runs_.back().from + runs_.back().bytes) > kMostPadding)
      runs_.push_back({from, total, 0});
    Run& run = runs_.back();
    host_offset_[i] = run.host_offset + (from - run.from);
    run.bytes = from - run.from + pieces_[i].memory.bytes();
    total = run.host_offset + run.bytes;
  }
}

Checkpointer::~Checkpointer() = default;  // a future of std::async waits for its thread

Result<std::optional<RunProgress>> Checkpointer::load() {
  const auto start = Clock::now();
  std::string folder;
  if (job_.world_rank() == 0) {
    const auto removed = remove_stale_attempts(dir_, attempt_);
    if (!removed) log_warn("{}", removed.error().message);
    const auto newest = newest_checkpoint(dir_);
    if (!newest) log_warn("{}", newest.error().message);
    if (newest && newest.value()) folder = newest.value()->path;
  }
  folder = job_.broadcast(folder);
  if (folder.empty()) return std::optional<RunProgress>();

  auto reader = CheckpointReader::open(folder);
  if (auto agreed = agree(job_, reader ? Result<void>{} : Result<void>(reader.error())); !agreed) return agreed.error();
  const Manifest& manifest = reader.value().manifest();

  std::vector<size_t> own;
  std::vector<int64_t> offset;
  int64_t bytes = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!pieces_[i].own) continue;
    // A checkpoint of weights alone begins a run: the moments stay zero.
    if (holds_weights_alone(manifest) && !pieces_[i].piece.tensor.starts_with(weight_name(""))) continue;
    own.push_back(i);
    offset.push_back(bytes);
    bytes += pieces_[i].memory.bytes();
  }
  HostBuffer<char> host(device_, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  std::mutex mutex;
  Result<void> result;
  std::atomic<size_t> next{0};
  const auto read = [&](int64_t, int64_t) {
    for (size_t n = next++; n < own.size(); n = next++) {
      auto done = reader.value().read(pieces_[own[n]].piece, host.data() + offset[n]);
      if (done) continue;
      const std::lock_guard lock(mutex);
      if (result) result = done;
    }
  };
  parallel_ranges(static_cast<int64_t>(own.size()), 1, read);
  if (auto agreed = agree(job_, result); !agreed) return agreed.error();
  for (size_t n = 0; n < own.size(); ++n) {
    const Tensor& memory = pieces_[own[n]].memory;
    compute_.copy(memory.data, host.data() + offset[n], memory.bytes());
  }
  compute_.synchronize();

  double all_bytes = 0;
  for (const std::string& text : job_.gather(fmt::format("{}", bytes))) all_bytes += std::stod(text);
  if (job_.world_rank() == 0)
    log_info("resumed from {}: step {}, {}{} read by {} ranks in {}", folder, manifest.step,
             holds_weights_alone(manifest) ? "weights alone (the optimizer begins anew), " : "",
             format_bytes(static_cast<int64_t>(all_bytes)), job_.world_size(),
             format_duration(seconds_between(start, Clock::now())));
  const auto samples = manifest.info.numbers.find("samples");
  if (samples == manifest.info.numbers.end()) return file_error("{}: the number of samples is missing", folder);
  saved_step_ = manifest.step;
  return std::optional(RunProgress{manifest.step, samples->second});
}

Result<void> Checkpointer::begin(RunProgress completed) {
  const auto start = Clock::now();
  if (phase_ != Phase::kIdle)
    if (auto done = finish(); !done && failures_ >= config_.checkpoint.max_failures) return done;
  progress_ = completed;
  begun_ = start;
  // The answer is also what the others wait for before they write into the folder.
  Result<std::string> folder = std::string();
  if (job_.world_rank() == 0) folder = begin_attempt(dir_, completed.steps, attempt_);
  const std::string answer = job_.broadcast(folder ? "+" + folder.value() : "-" + folder.error().message);
  if (answer[0] == '-') return failure(answer.substr(1));
  folder_ = answer.substr(1);

  if (!snapshot_) {
    const int64_t bytes = runs_.empty() ? 1 : runs_.back().host_offset + runs_.back().bytes;
    snapshot_ = std::make_unique<HostBuffer<char>>(device_, static_cast<size_t>(bytes));
  }
  compute_.record(*state_ready_);
  stream_->wait(*state_ready_);
  for (const Run& run : runs_) stream_->copy(snapshot_->data() + run.host_offset, run.from, run.bytes);
  stream_->record(*copied_);
  copying_ = true;
  phase_ = Phase::kWriting;
  outcome_.reset();
  writing_ = std::async(std::launch::async, [this, folder = folder_]() -> Result<ShardRecord> {
    const auto begun = Clock::now();
    device_.use_on_this_thread();
    copied_->synchronize();
    auto record = write_shard(folder);
    write_seconds_ = seconds_between(begun, Clock::now());
    return record;
  });
  stall_seconds_ = seconds_between(start, Clock::now());
  return {};
}

void Checkpointer::before_update() {
  if (copying_) compute_.wait(*copied_);
  copying_ = false;
}

Result<ShardRecord> Checkpointer::write_shard(const std::string& folder) const {
  auto writer = ShardWriter::create(folder + "/" + shard_name(job_.world_rank()), attempt_);
  if (!writer) return writer.error();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (host_offset_[i] < 0) continue;
    if (auto added = writer.value().add(pieces_[i].piece, snapshot_->data() + host_offset_[i]); !added)
      return added.error();
  }
  return writer.value().finish();
}

bool Checkpointer::phase_done() const {
  if (outcome_) return true;
  const auto ready = [](const auto& future) {
    return !future.valid() || future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  return phase_ == Phase::kWriting ? ready(writing_) : phase_ == Phase::kPublishing && ready(publishing_);
}

// Takes what the phase's thread brought.
void Checkpointer::collect() {
  if (outcome_ || phase_ == Phase::kIdle) return;
  if (phase_ == Phase::kWriting) {
    auto record = writing_.get();
    outcome_ = record ? Result<void>{} : Result<void>(record.error());
    if (record) record_ = to_text(record.value());
  } else {
    outcome_ = publishing_.valid() ? publishing_.get() : Result<void>{};
  }
}

RankFlags Checkpointer::flags() {
  if (phase_ == Phase::kIdle || !phase_done()) return {};
  collect();
  return {.saved = outcome_->ok(), .failed = !outcome_->ok()};
}

Result<void> Checkpointer::advance(int saved, int failed) {
  if (phase_ == Phase::kIdle || saved + failed < job_.world_size()) return {};
  return next_phase(failed == 0);
}

Result<void> Checkpointer::finish() {
  while (phase_ != Phase::kIdle) {
    collect();
    if (auto done = next_phase(job_.all_of(outcome_->ok())); !done) return done;
  }
  return last_;
}

// Every rank is here with its outcome.
Result<void> Checkpointer::next_phase(bool all_well) {
  const Result<void> mine = *outcome_;
  outcome_.reset();
  if (!all_well) {
    phase_ = Phase::kIdle;
    return failure(error_text(mine));
  }
  if (phase_ == Phase::kPublishing) {
    phase_ = Phase::kIdle;
    failures_ = 0;
    last_ = {};
    saved_step_ = progress_.steps;
    if (job_.world_rank() == 0) {
      work_seconds_ = stats_.slowest_seconds + publish_seconds_;
      stats_.seconds = seconds_between(begun_, Clock::now());
      published_.push_back(stats_);
    }
    return {};
  }
  int64_t bytes = 0;
  for (const Run& run : runs_) bytes += run.bytes;
  const std::vector<std::string> figures = job_.gather(fmt::format("{} {} {}", bytes, stall_seconds_, write_seconds_));
  std::vector<std::string> records = job_.gather(record_);
  phase_ = Phase::kPublishing;
  if (job_.world_rank() != 0) return {};
  stats_ = {.step = progress_.steps};
  for (size_t rank = 0; rank < figures.size(); ++rank) {
    std::istringstream words(figures[rank]);
    int64_t rank_bytes = 0;
    double stall = 0, seconds = 0;
    words >> rank_bytes >> stall >> seconds;
    stats_.bytes += rank_bytes;
    stats_.stall_seconds = std::max(stats_.stall_seconds, stall);
    if (seconds > stats_.slowest_seconds)
      stats_.slowest_seconds = seconds, stats_.slowest_rank = static_cast<int>(rank);
  }
  publishing_ =
      std::async(std::launch::async, [this, records = std::move(records), folder = folder_, progress = progress_] {
        const auto begun = Clock::now();
        auto published = publish(records, folder, progress);
        publish_seconds_ = seconds_between(begun, Clock::now());
        return published;
      });
  return {};
}

Result<void> Checkpointer::publish(const std::vector<std::string>& records, const std::string& folder,
                                   RunProgress progress) const {
  Manifest manifest{.attempt = attempt_, .step = progress.steps};
  manifest.info.texts = {
      {"config", to_yaml(config_)},
      {"layout", fmt::format("tp {} x dp {} x pp {}, {} chunk(s), zero {}", mesh_.tp.size, mesh_.dp.size, mesh_.pp.size,
                             config_.parallel.chunks, config_.parallel.zero)}};
  manifest.info.numbers = {{"samples", progress.samples}};
  for (const std::string& text : records) {
    auto record = shard_record_from_text(text);
    if (!record) return record.error();
    if (auto added = manifest.add(record.value()); !added) return added;
  }
  auto index = write_index(folder, manifest);
  if (!index) return index.error();
  manifest.files.push_back(index.value());
  if (auto written = write_manifest(folder, manifest); !written) return written;
  if (auto published = tri::publish(dir_, progress.steps, attempt_); !published) return published;
  // What can't be removed is no reason to call the checkpoint a failure.
  const auto removed = prune(dir_, config_.checkpoint.keep_last, config_.checkpoint.keep_every, attempt_);
  if (!removed) log_warn("{}", removed.error().message);
  return {};
}

// The same on all ranks: the checkpoint under way is given up.
Result<void> Checkpointer::failure(const std::string& mine) {
  std::string report;
  const std::vector<std::string> texts = job_.gather(mine);
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty()) report += fmt::format("\n  rank {}: {}", rank, texts[rank]);
  report = job_.broadcast(report);
  ++failures_;
  last_ = Error{fmt::format("checkpoint of step {} failed ({} in a row):{}", progress_.steps, failures_, report),
                ExitCode::kFile};
  if (job_.world_rank() == 0) {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
    log_warn("{}", last_.error().message);
  }
  folder_.clear();
  return failures_ < config_.checkpoint.max_failures ? Result<void>{} : last_;
}

double Checkpointer::seconds_needed() const {
  if (phase_ == Phase::kIdle) return work_seconds_;
  return work_seconds_ + std::max(0.0, work_seconds_ - seconds_between(begun_, Clock::now()));
}

std::vector<CheckpointStats> Checkpointer::published() { return std::exchange(published_, {}); }

}  // namespace tri
