#include "app/job_config.h"

#include <iterator>
#include <sstream>

#include "io/base/format.h"
#include "io/base/log.h"
#include "kernels/core/device.h"
#include "lib/checkpoint/weights.h"
#include "lib/comm/peer/memory.h"
#include "lib/engine/rank_tensors.h"
#include "lib/infer/loaded_model.h"

namespace tri {
namespace {

// run.device: auto, decided for the whole job.
void choose_device(RunConfig& run, Job& job) {
  if (run.device != DeviceChoice::kAuto) return;
  const bool everywhere = job.all_of(num_gpus() > job.node_rank());
  run.device = everywhere ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  log_info("run.device: auto: {}",
           everywhere ? "a GPU a rank" : "not every rank has a GPU of its own, so the job runs on the CPU");
}

// tp_transfers and dp_transfers: auto, where a group's ranks are on several machines: no memory is laid out for copies.
void choose_transfers(ParallelConfig& parallel, const Mesh& mesh, Job& job) {
  const std::vector<std::string> machines = job.all_gather(machine_name());
  const auto spans_machines = [&](int size, auto rank_of) {
    bool one = true;
    for (int i = 0; i < size; ++i)
      one &= machines[static_cast<size_t>(rank_of(i))] == machines[static_cast<size_t>(job.world_rank())];
    return !job.all_of(one);
  };
  if (parallel.tp_transfers == Transfers::kAuto &&
      spans_machines(mesh.tp.size, [&](int i) { return mesh.rank_at(mesh.pp.rank, mesh.dp.rank, i); }))
    parallel.tp_transfers = Transfers::kCollectives;
  if (parallel.dp_transfers == Transfers::kAuto &&
      spans_machines(mesh.dp.size, [&](int i) { return mesh.rank_at(mesh.pp.rank, i, mesh.tp.rank); }))
    parallel.dp_transfers = Transfers::kCollectives;
}

// parallel.recompute: auto, decided for the whole job by the memory that is free.
Result<void> choose_recompute(Config& config, const Mesh& mesh, Job& job) {
  if (config.parallel.recompute != Recompute::kAuto) return {};
  auto device = open_device(device_kind(config.run.device), job.node_rank());
  if (auto all = agree(job, device ? Result<void>{} : Result<void>(device.error())); !all) return all;
  const int64_t room = room_for_arena(device.value()->kind(), device.value()->free_bytes(), job.node_size());
  const Recompute mine = least_recompute(config, mesh, *device.value(), room);
  config.parallel.recompute = Recompute::kFull;
  for (const Recompute level : {Recompute::kSelective, Recompute::kNorms, Recompute::kNone})
    if (job.all_of(mine <= level)) config.parallel.recompute = level;
  log_info("parallel.recompute: auto: {}, for {} a rank", enum_name(config.parallel.recompute), format_bytes(room));
  return {};
}

// Rank 0's text or its error, on all ranks.
Result<std::string> share(const Result<std::string>& mine, Job& job) {
  std::string envelope;
  if (job.world_rank() == 0)
    envelope =
        mine ? "+" + mine.value() : fmt::format("-{:02}{}", static_cast<int>(mine.error().code), mine.error().message);
  envelope = job.broadcast(envelope);
  if (envelope.front() == '+') return envelope.substr(1);
  return Error{envelope.substr(3), static_cast<ExitCode>(std::stoi(envelope.substr(1, 2)))};
}

Result<Config> parse_for_job(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  log_identify(job.world_rank() == 0, fmt::format("rank {}", job.world_rank()));
  const auto text = share(job.world_rank() == 0 ? read_config_text(path) : std::string(), job);
  if (!text) return text.error();
  return parse_config(text.value(), path, overrides);
}

Result<JobConfig> resolve_for_job(Config parsed, Job& job) {
  auto resolved = resolve_config(std::move(parsed), job.world_size());
  if (!resolved) return resolved.error();
  choose_device(resolved.value().run, job);
  const auto& parallel = resolved.value().parallel;
  const Mesh mesh = make_mesh(job.world_rank(), parallel.tp, parallel.dp, parallel.pp);
  log_identify(job.world_rank() == 0, mesh.place());
  choose_transfers(resolved.value().parallel, mesh, job);
  if (auto chosen = choose_recompute(resolved.value(), mesh, job); !chosen) return chosen.error();
  return JobConfig{std::move(resolved).value(), mesh};
}

// The first line: the checkpoint's folder, the second: its step. Then its config. For rank 0.
Result<std::string> describe_checkpoint(const std::string& path, int ranks) {
  const auto folder = find_checkpoint(path);
  if (!folder) return folder;
  const auto manifest = read_manifest(folder.value());
  if (!manifest) return manifest.error();
  const auto config = checkpoint_config(folder.value(), manifest.value());
  if (!config) return config.error();
  return fmt::format("{}\n{}\n{}", folder.value(), manifest.value().step,
                     to_yaml(forward_config(config.value(), ranks)));
}

}  // namespace

Result<JobConfig> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  auto parsed = parse_for_job(path, overrides, job);
  if (!parsed) return parsed.error();
  return resolve_for_job(std::move(parsed).value(), job);
}

Result<Config> load_open_config(const std::string& path, const std::vector<std::string>& overrides, Job& job) {
  auto parsed = parse_for_job(path, overrides, job);
  if (parsed) choose_device(parsed.value().run, job);
  return parsed;
}

Result<CheckpointJob> load_checkpoint_config(const std::string& path, const std::vector<std::string>& overrides,
                                             Job& job, const std::function<void(Config&)>& adjust) {
  log_identify(job.world_rank() == 0, fmt::format("rank {}", job.world_rank()));
  const auto text = share(job.world_rank() == 0 ? describe_checkpoint(path, job.world_size()) : std::string(), job);
  if (!text) return text.error();
  std::istringstream lines(text.value());
  CheckpointJob result;
  std::string step;
  std::getline(lines, result.checkpoint);
  std::getline(lines, step);
  result.step = std::stoll(step);
  const std::string yaml(std::istreambuf_iterator<char>(lines), {});
  auto parsed = parse_config(yaml, result.checkpoint + "'s config", overrides);
  if (!parsed) return parsed.error();
  adjust(parsed.value());
  auto resolved = resolve_for_job(std::move(parsed).value(), job);
  if (!resolved) return resolved.error();
  result.job = std::move(resolved).value();
  return result;
}

}  // namespace tri
