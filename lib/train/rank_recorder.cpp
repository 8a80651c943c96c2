#include "lib/train/rank_recorder.h"

#include <filesystem>
#include <system_error>

#include "io/base/log.h"
#include "lib/engine/rank_tensors.h"
#include "lib/fault/stale_records.h"
#include "lib/train/run_folder.h"

namespace tri {
namespace {

constexpr const char* kNoRun = "";

// Returns how many compute actions the host may be ahead of the device: those of a step and an evaluation.
int most_actions(const Config& config) { return 5 * microbatches(config) * config.parallel.chunks + 64; }

std::string absolute(const std::string& folder) {
  std::error_code problem;
  const auto path = std::filesystem::absolute(folder, problem);
  return folder.empty() || problem ? folder : path.lexically_normal().string();
}

}  // namespace

RankRecorder::RankRecorder(const Config& config, const Mesh& mesh, const std::string& attempt, Job& job,
                           const std::string& run_dir)
    : job_(job) {
  if (job.node_rank() == 0) remove_stale_records(absolute(run_dir));
  if (!config.fault.black_box) return;
  identity_ = RecorderIdentity{.world_rank = mesh.world_rank,
                               .world_size = mesh.world_size(),
                               .grid = mesh.grid,
                               .attempt = attempt,
                               .job = batch_start().job,
                               .run_dir = absolute(run_dir),
                               .max_actions = most_actions(config)};
  auto made = FlightRecorder::create(identity_);
  const Result<void> mine = made ? Result<void>{} : Result<void>(made.error());
  if (made) recorder_ = std::move(made).value();
  if (auto agreed = agree(job, mine); !agreed)
    give_up(agreed.error());
  else
    process_ = std::make_unique<ProcessFlightRecorder>(recorder_.get());
}

void RankRecorder::unmap() {
  if (device_ != nullptr) device_->unmap_host(&recorder_->image());
  device_ = nullptr;
}

void RankRecorder::map(Device& device) {
  if (!recorder_) return;
  identity_.gpu = device.bus_id();
  recorder_->set_place(identity_);
  const Result<void> mine = device.map_host(&recorder_->image(), recorder_->bytes());
  if (mine) device_ = &device;
  if (auto agreed = agree(job_, mine); !agreed) give_up(agreed.error());
}

void RankRecorder::give_up(const Error& why) {
  if (job_.world_rank() == 0)
    log_warn("flight recorders are not available: {}; the run continues without them and without the watchdog",
             why.message);
  process_.reset();
  unmap();
  if (recorder_) recorder_->end_well();
  recorder_.reset();
}

WatchedUse::WatchedUse(const PlannedJob& planned, Job& job, Device& device, ProcessDeadline& deadline)
    : recorder_(planned.config, planned.mesh, job.broadcast(own_attempt()), job, kNoRun), mapped_(recorder_, device) {
  if (FlightRecorder* const recorder = recorder_.flight())
    watchdog_.emplace(Watchdog::Context{.recorder = *recorder,
                                        .job = job,
                                        .fault = planned.config.fault,
                                        .attempt = recorder->image().attempt,
                                        .run_dir = kNoRun,
                                        .uses_nccl = device.kind() == DeviceKind::kCuda});
  deadline.hand_over();
}

// An exception ends the job where it is thrown (run_job), so a rank that gets here has completed its work.
WatchedUse::~WatchedUse() {
  if (FlightRecorder* const recorder = recorder_.flight()) recorder->end_well();
}

}  // namespace tri
