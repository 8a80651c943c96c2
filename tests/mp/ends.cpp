// A job that fails, mostly on rank 1, while the other ranks are in collectives. The script
// tests/mp/ends_when_a_rank_fails.sh observes it.
//   ends END [FOLDER]    on two ranks or four; END is one of
//     none
//     throw, throw=STATUS, task, kill, exit    at step 3: an exception on the host or in a stream, or the rank ends
//     stopped                                  at step 3: an exception, while rank 2 is stopped by a signal
//     alike                                    at step 3, on all ranks with the same message
//     gone                                     rank 1 is killed, and rank 0 throws while its failure hook reports that
//     avalanche                                at step 3, rank 0 sees an end that rank 1 reports later (log in FOLDER)
//     group, inference-group                   the last group that an engine makes, for training or inference
//     forward, backward, update, evaluation    an exception there, on two ranks
//     checkpoint                               when rank 0 publishes the one in FOLDER, on a separate thread
//     shutdown                                 after the last step, when rank 0 is already in its destructors
//     absent                                   rank 1 makes no engine, and fault.connect_seconds is 1
// TRIREME_TEST_DEVICE=cuda: on GPUs.
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "kernels/cpu/device.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/comm/job/job.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/fault/events.h"
#include "lib/infer/evaluator.h"
#include "lib/train/trainer.h"
#include "tests/hangs/on_transfer.h"
#include "tests/mp/mp_test.h"

namespace {

// Creating a group fails on this rank after this many groups; -1: never. Counted through MPI's profiling interface: one
// call creates groups over MPI, messages distribute the ids of groups over NCCL.
int g_groups_before_failure = -1;
bool g_over_nccl = false;
constexpr int kNcclIdBytes = 128;

std::atomic<bool> g_hook_runs{false};

bool group_fails() { return g_groups_before_failure >= 0 && g_groups_before_failure-- == 0; }

}  // namespace

// NOLINTBEGIN: MPI's own names
extern "C" int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  return !g_over_nccl && group_fails() ? MPI_ERR_NO_MEM : PMPI_Comm_create_group(comm, group, tag, made);
}
extern "C" int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  const bool of_id = g_over_nccl && count == kNcclIdBytes;
  return of_id && group_fails() ? MPI_ERR_NO_MEM : PMPI_Irecv(data, count, type, from, tag, comm, request);
}
// NOLINTEND

namespace tri {
namespace {

// On the stack of every rank: its destructor waits for the others, like many destructors. An exception that is reported
// only after it has passed this object is never reported.
struct BarrierAtEnd {
  Job& job;
  ~BarrierAtEnd() { job.barrier(); }
};

class Trouble {
 public:
  Trouble(std::string end, Job& job) : end_(std::move(end)), rank_(job.world_rank()) {}

  bool is(const char* end) const { return end_ == end; }
  bool fails_with(const char* end) const { return is(end) && rank_ == 1; }
  void at(const char* end) const {
    if (fails_with(end)) fail();
  }
  [[noreturn]] void fail() const {
    throw Fatal(ExitCode::kDevice, fmt::format("{}: rank {} can't go on", end_, rank_));
  }

  void at_step_3(Trainer& trainer) const {
    if (is("alike")) throw Fatal(ExitCode::kDevice, "no rank can go on");
    if (is("stopped") && rank_ == 2) std::raise(SIGSTOP);
    if (is("avalanche") && rank_ == 0) throw Fatal(ExitCode::kComm, "the other end is gone", Cause::kPeer);
    if (is("gone") && rank_ == 0) {
      while (!g_hook_runs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw Fatal(ExitCode::kDevice, "rank 0 can't go on");
    }
    if (rank_ != 1) return;
    if (is("stopped")) throw Fatal(ExitCode::kDevice, "rank 1 can't go on alongside a stopped one");
    if (end_.rfind("throw=", 0) == 0)
      throw Fatal(static_cast<ExitCode>(std::stoi(end_.substr(6))), "rank 1 can't go on");
    if (is("throw")) throw Fatal(ExitCode::kDevice, "the device of rank 1 has burnt");
    if (is("task"))
      cpu_stream(trainer.runtime().compute()).submit([] { throw Fatal(ExitCode::kFile, "a task of rank 1 broke"); });
    if (is("avalanche")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      fail();
    }
    if (is("kill") || is("gone")) std::raise(SIGKILL);
    if (is("exit")) std::_Exit(9);
  }

 private:
  const std::string end_;
  const int rank_;
};

Config config_of(const Trouble& trouble, const std::string& folder, DeviceKind device, Job& job) {
  Config config;
  config.run.device = device_choice(device);
  config.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 16, .tie_embeddings = true};
  config.data.global_batch = 8;
  config.parallel = {.tp = job.world_size() / 2, .pp = 2};
  config.checkpoint.dir = folder;
  config.fault.connect_seconds = trouble.is("absent") ? 1 : 600;
  const Config resolved = value_or_throw(resolve_config(config, job.world_size()));
  return value_or_throw(plan_for_job(resolved, job)).config;
}

// Creates an inference engine, like a loaded model.
void make_inference_engine(const Config& config, const Mesh& mesh, Job& job, Device& device) {
  Arena arena(device, rank_bytes(config, mesh, device, EngineKind::kInference));
  const Engine engine({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena},
                      EngineKind::kInference);
}

void train(const Trouble& trouble, const std::string& folder, Job& job) {
  const auto device = open_test_device();
  g_over_nccl = device->kind() == DeviceKind::kCuda;
  const Config config = config_of(trouble, folder, device->kind(), job);
  const Mesh mesh = mesh_of(config, job.world_rank());
  const BarrierAtEnd barrier{job};
  if (trouble.is("avalanche"))
    job.set_failure_hook(
        EventLog(
            {.path = folder + "/events.jsonl", .attempt = "ends", .world_rank = job.world_rank(), .host = job.host()})
            .failure_hook());
  if (trouble.is("gone"))
    job.set_failure_hook([](const Job::Failure&) -> std::optional<Job::FirstCause> {
      std::fputs("the failure hook runs\n", stderr);
      g_hook_runs = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // a second call would overlap
      return std::nullopt;
    });
  if (trouble.fails_with("absent"))
    for (;;) ::pause();
  // Rank 1 is the last stage: of the group of the world and that of the tied embeddings, the second one fails.
  if (trouble.fails_with("group") || trouble.fails_with("inference-group")) g_groups_before_failure = 1;
  if (trouble.is("inference-group")) return make_inference_engine(config, mesh, job, *device);

  bool evaluating = false, third = false;
  const OnTransfer on_transfer([&](const Stream& stream) {
    if (evaluating) trouble.at("evaluation");
    if (third && stream.name() == "pp receive forward") trouble.at("forward");
    if (third && stream.name() == "pp send backward") trouble.at("backward");
  });
  Arena arena(*device, rank_bytes(config, mesh, *device));
  Trainer trainer({.config = config, .mesh = mesh, .job = &job, .device = *device, .arena = arena});
  trainer.make_start_values();
  const std::string attempt = "ends";
  Checkpointer checkpoints({.config = config,
                            .requested = config,
                            .mesh = mesh,
                            .job = job,
                            .device = *device,
                            .compute = trainer.runtime().compute(),
                            .store = trainer.store().memory.tensors(),
                            .attempt = attempt});
  checkpoints.set_may_publish([&]() -> Result<void> {
    if (trouble.is("checkpoint")) trouble.fail();
    return {};
  });
  const std::vector<int32_t> tokens(static_cast<size_t>(microbatches(config) * config.data.micro_batch * 16), 5);
  for (int64_t step = 0; step < 20; ++step) {
    third = step == 3;
    if (third) trouble.at_step_3(trainer);
    const StepStatistics local{.saved = checkpoints.part_outcome() == PartOutcome::kSaved ? 1.0f : 0.0f};
    const StepResult result = trainer.step(step, tokens, tokens, local, [&] {
      checkpoints.before_update();
      if (third) trouble.at("update");
    });
    value_or_throw(checkpoints.advance(result.sums.num_saved(), result.sums.num_failed()));
    if (third && trouble.is("checkpoint"))
      value_or_throw(checkpoints.begin({.steps = step + 1, .samples = (step + 1) * config.data.global_batch}));
  }
  value_or_throw(checkpoints.finish());
  evaluating = true;
  Evaluator(trainer.engine()).evaluate(tokens, tokens);
  trouble.at("shutdown");
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  const std::string end = argc > 1 ? argv[1] : "none", folder = argc > 2 ? argv[2] : "";
  return tri::run_job(&argc, &argv, [&](tri::Job& job) {
    tri::test_job() = &job;
    tri::train(tri::Trouble(end, job), folder, job);
    return 0;
  });
}
