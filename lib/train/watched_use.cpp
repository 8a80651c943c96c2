#include "lib/train/watched_use.h"

#include "lib/train/run_folder.h"

namespace tri {
namespace {

constexpr const char* kNoRun = "";

}  // namespace

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

// An exception ends the job where it is thrown (run_job): who comes here has done his work.
WatchedUse::~WatchedUse() {
  if (BlackBox* const box = recorder_.box()) box->end_well();
}

}  // namespace tri
