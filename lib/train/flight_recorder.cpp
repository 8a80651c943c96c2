#include "lib/train/flight_recorder.h"

#include <filesystem>
#include <system_error>

#include "io/base/log.h"
#include "lib/engine/rank_tensors.h"
#include "lib/fault/stale_boxes.h"
#include "lib/train/run_folder.h"

namespace tri {
namespace {

constexpr const char* kNoRun = "";

// Compute actions that the host may be ahead of the device: those of a step and an evaluation.
int most_actions(const Config& config) { return 4 * microbatches(config) * config.parallel.chunks + 64; }

std::string absolute(const std::string& folder) {
  std::error_code problem;
  const auto path = std::filesystem::absolute(folder, problem);
  return folder.empty() || problem ? folder : path.lexically_normal().string();
}

}  // namespace

RunRecorder::RunRecorder(const Config& config, const Mesh& mesh, const std::string& attempt, Job& job,
                         const std::string& run_dir)
    : job_(job) {
  if (job.node_rank() == 0) remove_stale_boxes(absolute(run_dir));
  if (!config.fault.black_box) return;
  identity_ = BlackBoxIdentity{.world_rank = mesh.world_rank,
                               .world_size = mesh.world_size(),
                               .grid = mesh.grid,
                               .attempt = attempt,
                               .job = batch_start().job,
                               .run_dir = absolute(run_dir),
                               .max_actions = most_actions(config)};
  auto made = BlackBox::create(identity_);
  const Result<void> mine = made ? Result<void>{} : Result<void>(made.error());
  if (made) box_ = std::move(made).value();
  if (auto agreed = agree(job, mine); !agreed)
    give_up(agreed.error());
  else
    process_ = std::make_unique<ProcessBlackBox>(box_.get());
}

void RunRecorder::unmap() {
  if (device_ != nullptr) device_->unmap_host(&box_->image());
  device_ = nullptr;
}

void RunRecorder::map(Device& device) {
  if (!box_) return;
  identity_.gpu = device.bus_id();
  box_->set_place(identity_);
  const Result<void> mine = device.map_host(&box_->image(), box_->bytes());
  if (mine) device_ = &device;
  if (auto agreed = agree(job_, mine); !agreed) give_up(agreed.error());
}

void RunRecorder::give_up(const Error& why) {
  if (job_.world_rank() == 0)
    log_warn("no black boxes: {}; the run goes on without them and without watchdog", why.message);
  process_.reset();
  unmap();
  if (box_) box_->end_well();
  box_.reset();
}

WatchedUse::WatchedUse(const PlannedJob& planned, Job& job, Device& device, ProcessDeadline& deadline)
    : recorder_(planned.config, planned.mesh, job.broadcast(own_attempt()), job, kNoRun), mapped_(recorder_, device) {
  if (BlackBox* const box = recorder_.box())
    watchdog_.emplace(Watchdog::Context{.box = *box,
                                        .job = job,
                                        .fault = planned.config.fault,
                                        .attempt = box->image().attempt,
                                        .run_dir = kNoRun,
                                        .uses_nccl = device.kind() == DeviceKind::kCuda});
  deadline.hand_over();
}

// An exception ends the job where it is thrown (run_job): a rank that comes here has completed its work.
WatchedUse::~WatchedUse() {
  if (BlackBox* const box = recorder_.box()) box->end_well();
}

}  // namespace tri
