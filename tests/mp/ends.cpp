// A job whose rank 1 comes to a bad end at step 3 while the others sit in collectives. tests/mp/ends_when_a_rank_fails.sh
// looks on.
//   ends throw|throw=STATUS|task|kill|exit|none
#include <csignal>
#include <cstdlib>
#include <string>

#include "kernels/cpu/device.h"
#include "lib/comm/job.h"
#include "lib/engine/job_plan.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

int train_until(const std::string& end, Job& job) {
  Config config;
  config.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 16};
  config.data.global_batch = 8;
  config.parallel.tp = 2;
  config.parallel.pp = 2;
  config.run.device = DeviceChoice::kCpu;
  const PlannedJob planned =
      value_or_throw(plan_for_job(value_or_throw(resolve_config(config, job.world_size())), job));
  config = planned.config;
  const Mesh& mesh = planned.mesh;
  auto device = make_cpu_device();
  Arena arena(*device, rank_bytes(config, mesh, *device));
  Trainer trainer({.config = config, .mesh = mesh, .job = &job, .device = *device, .arena = arena});
  trainer.make_start_values();
  const std::vector<int32_t> tokens(static_cast<size_t>(microbatches(config) * config.data.micro_batch * 16), 5);
  for (int64_t step = 0; step < 20; ++step) {
    if (step == 3 && job.world_rank() == 1) {
      if (end.rfind("throw=", 0) == 0)
        throw Fatal(static_cast<ExitCode>(std::stoi(end.substr(6))), "rank 1 can't go on");
      if (end == "throw") throw Fatal(ExitCode::kDevice, "the device of rank 1 has burnt");
      if (end == "task")
        cpu_stream(trainer.runtime().compute()).submit([] { throw Fatal(ExitCode::kFile, "a task of rank 1 broke"); });
      if (end == "kill") std::raise(SIGKILL);
      if (end == "exit") std::_Exit(9);
    }
    trainer.step(step, tokens, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  const std::string end = argc > 1 ? argv[1] : "none";
  return tri::run_job(&argc, &argv, [&](tri::Job& job) { return tri::train_until(end, job); });
}
