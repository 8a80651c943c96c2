#include "lib/observe/status/run_summary.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "io/base/format.h"
#include "io/base/log.h"
#include "lib/config/batch_sizes.h"
#include "lib/model/flops.h"
#include "lib/model/parameter.h"

namespace tri {
namespace {

// What a rank read from token files.
struct BytesRead {
  int node;  // identified by its first rank
  int64_t bytes;
};

// How a rank's time was spent.
struct RankTimes {
  StepTimes steps;
  std::map<std::string, double> busy;  // seconds, by stream
};
template <class Archive>
void fields(Archive& archive, RankTimes& times) {
  archive(times.steps, times.busy);
}

}  // namespace

std::string bytes_table(const Arena& arena) {
  std::string table;
  for (const auto& [name, bytes] : arena.bytes_by_name())
    table += fmt::format("  {:<22}{:>14}  {:>15} bytes\n", name, format_bytes(bytes), bytes);
  return table + fmt::format("  {:<22}{:>14}  {:>15} bytes", "total", format_bytes(arena.used()), arena.used());
}

void log_run(const Config& config, const Mesh& mesh, const OrderFields& order, const Arena& arena) {
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  log_info("{}: {} parameters, {}, hidden {}, {} FLOPs per token", config.run.name,
           format_count(static_cast<double>(parameters)), counted(config.model.layers, "layer"), config.model.hidden,
           format_count(model_flops_per_token(config)));
  log_info("mesh: {} = {}, {} with {}, zero {}, {}, {}", mesh.grid.sizes(), counted(mesh.world_size(), "rank"),
           enum_name(config.parallel.schedule), counted(config.parallel.chunks, "chunk"), config.parallel.zero,
           enum_name(config.precision.compute), enum_name(config.run.device));
  const SampleOrder samples(order);
  const BatchSizes sizes = batch_sizes(config);
  log_info("data: {} training and {} validation samples of {} tokens; a step uses {}",
           samples.num_samples(Split::kTrain), samples.num_samples(Split::kValidation), config.model.seq_len,
           sizes.is_constant() ? fmt::format("{}", config.data.global_batch)
                               : fmt::format("{} to {}", sizes.smallest(), sizes.largest()));
  log_info("memory of rank 0:\n{}", bytes_table(arena));
}

void log_data(Job& job, const Mesh& mesh, int64_t bytes, int64_t steps) {
  std::map<int, int64_t> of_node;  // by the node's first rank
  int64_t total = 0;
  int readers = 0;
  for (const BytesRead& rank : job.gather(BytesRead{job.node_ranks().front(), bytes})) {
    of_node[rank.node] += rank.bytes;
    total += rank.bytes;
    readers += rank.bytes > 0;
  }
  if (mesh.world_rank != 0) return;
  int64_t most = 0;
  for (const auto& [node, read] : of_node) most = std::max(most, read);
  log_info("data: {} bytes of token files for {}, read by {} of {}; at most {} on one of {}", total,
           counted(steps, "step"), readers, counted(mesh.world_size(), "rank"), most,
           counted(static_cast<int64_t>(of_node.size()), "node"));
}

void log_summary(Job& job, const Mesh& mesh, const StepTimes& steps, const std::vector<NamedTimes>& streams,
                 double wall_seconds) {
  RankTimes mine{.steps = steps};
  for (const NamedTimes& row : streams)
    if (row.stream != "compute") mine.busy[row.stream] = row.times.busy;
  std::array<double, StepTimes::kKinds> sum{};
  std::map<std::string, double> busy;
  for (const RankTimes& rank : job.gather(mine)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += rank.steps.values()[i];
    for (const auto& [name, seconds] : rank.busy) busy[name] += seconds;
  }
  if (mesh.world_rank != 0) return;
  const double total = std::accumulate(sum.begin(), sum.end(), 0.0);
  std::string parts;
  for (size_t i = 0; i < sum.size(); ++i) {
    const double share = sum[i] / std::max(total, 1e-9);
    if (share >= 0.0005)  // else it would be printed as 0.0 %
      parts += fmt::format("{}{} {:.1f} %", parts.empty() ? "" : ", ", StepTimes::names()[i], 100 * share);
  }
  log_info("time: wall {}, of which {} in steps; mean over {}: {}", format_duration(wall_seconds),
           format_duration(total / mesh.world_size()), counted(mesh.world_size(), "rank"), parts);
  std::string traffic;
  for (const auto& [name, seconds] : busy)
    if (seconds / mesh.world_size() >= 0.05)  // else it would be printed as 0.0 s
      traffic +=
          fmt::format("{}{} {}", traffic.empty() ? "" : ", ", name, format_duration(seconds / mesh.world_size()));
  if (!traffic.empty()) log_info("transfers during compute: {}", traffic);
}

}  // namespace tri
