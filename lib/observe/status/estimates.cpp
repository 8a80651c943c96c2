#include "lib/observe/status/estimates.h"

#include <algorithm>

#include "io/base/format.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/data/order.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/optim/flat_layout.h"
#include "lib/optim/optimizers.h"
#include "lib/simulate/goodput.h"
#include "lib/simulate/new_config.h"

namespace tri {

DpTraffic dp_traffic(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const ClusterConfig& cluster = config.cluster;
  const Mesh mesh = mesh_of(config, 0);
  // In a ring each rank sends (ranks - 1) / ranks of a bucket to reduce-scatter it, and the same to gather it. These
  // are the elements of the stage with the largest buffers, and those of FP8 weights among them.
  int64_t most = 0, slices = 0, slices_of_fp8 = 0;
  for (int stage = 0; stage < p.pp; ++stage) {
    int64_t elements = 0, sent = 0, sent_fp8 = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const FlatLayout layout =
          make_flat_layout(chunk_parameters(config, {stage, p.pp}, chunk), mesh, p.bucket_elements);
      elements += layout.size;
      for (const Bucket& bucket : layout.buckets) {
        const int64_t members = mesh.joint_axis(bucket.sharded_over()).size;
        sent += bucket.size / members * (members - 1);
        if (bucket.quantized) sent_fp8 += bucket.size / members * (members - 1);
      }
    }
    if (elements <= most) continue;
    most = elements;
    slices = sent;
    slices_of_fp8 = sent_fp8;
  }
  const std::vector<int> group = mesh.group(kBucketAxes);
  const auto ranks = static_cast<int>(group.size());
  const int64_t element = config.precision.compute == Dtype::kBF16 ? 2 : 4;
  const int64_t gradients = slices * 4, parameters = (slices - slices_of_fp8) * element + slices_of_fp8;
  const int64_t num_microbatches = config.data.global_batch / config.data.micro_batch / p.dp;
  DpTraffic traffic{.ranks = ranks};
  if (p.zero == 2) traffic.microbatch_bytes = gradients;
  traffic.step_bytes = p.zero == 0   ? 2 * gradients  // an all-reduce
                       : p.zero == 1 ? gradients + parameters
                                     : num_microbatches * gradients + parameters;
  // If a machine holds n members of a group, n adapters carry its ring.
  const int stride = ranks > 1 ? group[1] - group[0] : 1;
  traffic.on_node = std::max(1, std::min(ranks, cluster.ranks_per_node / stride));
  traffic.crosses_nodes = traffic.on_node < ranks;
  const double inside = cluster.node_gb_per_s * 1e9, across = traffic.on_node * cluster.network_gb_per_s * 1e9;
  traffic.network_bound = traffic.crosses_nodes && across < inside;
  traffic.bytes_per_second = traffic.network_bound ? across : inside;
  const double tokens = static_cast<double>(config.data.micro_batch) * config.model.seq_len;
  traffic.compute_seconds =
      model_flops_per_token(config) * tokens / (p.tp * p.cp * p.pp) / (cluster.rank_tflops * 1e12);
  return traffic;
}

CheckpointEstimate checkpoint_estimate(const Config& config, int ranks) {
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  CheckpointEstimate estimate{.bytes = (4 + optimizer_state_bytes(config.optimizer)) * parameters};
  estimate.write_seconds = static_cast<double>(estimate.bytes) / (config.cluster.storage_gb_per_s * 1e9);
  estimate.stall_seconds = ClusterFaults{}.stall_s;
  estimate.mtbf_seconds = 3600 * config.cluster.rank_mtbf_hours / ranks;
  const FaultRates rates{.mtbf_s = estimate.mtbf_seconds, .stall_s = estimate.stall_seconds};
  estimate.interval_seconds = std::max(best_interval(rates), estimate.write_seconds);
  return estimate;
}

std::string dp_warning(const Config& config, const DpTraffic& traffic) {
  if (traffic.ranks == 1 || !traffic.exceeds_compute()) return "";
  return fmt::format(
      "parallel.zero: 2 sends {} after each of {}, which takes {:.1f} ms, longer than the {:.1f} ms of compute "
      "(cluster.rank_tflops {:g}); set parallel.zero to 1, or increase data.micro_batch",
      format_bytes(traffic.microbatch_bytes), counted(microbatches(config), "microbatch"),
      1e3 * traffic.microbatch_seconds(), 1e3 * traffic.compute_seconds, config.cluster.rank_tflops);
}

std::string checkpoint_warning(const Config& config, const CheckpointEstimate& estimate) {
  if (std::string warning = no_checkpoints_warning(config.checkpoint); !warning.empty()) return warning;
  const double interval = 60 * config.checkpoint.every_minutes;
  if (interval == 0 || interval >= estimate.write_seconds) return "";
  return fmt::format(
      "checkpoint.every_minutes: {:g} is less than the time in which a checkpoint is written; increase it",
      config.checkpoint.every_minutes);
}

std::string vocab_warning(const Config& config, int tokens) {
  if (config.model.vocab / tokens < kOtherVocab) return "";
  return fmt::format("model.vocab: {}, of which {} are unused: data.tokenizer {} has {} tokens; set model.vocab to {}",
                     config.model.vocab, config.model.vocab - tokens, config.data.tokenizer, tokens, tokens);
}

std::string epochs_warning(const Config& config, const OrderFields& order) {
  constexpr double kManyEpochs = 10;
  const SampleOrder samples(order);
  double weights = 0, most = 0;
  for (const OrderedSource& source : order.sources) weights += source.weight;
  const auto run_samples = static_cast<double>(samples_of_run(config));
  size_t worst = 0;
  for (size_t i = 0; i < order.sources.size(); ++i) {
    const auto there =
        static_cast<double>(std::max<int64_t>(1, samples.num_samples(Split::kTrain, static_cast<int>(i))));
    const double read = order.stages.empty()
                            ? run_samples * order.sources[i].weight / weights
                            : static_cast<double>(samples.consumed(static_cast<int>(i), samples_of_run(config)));
    const double epochs = read / there;
    if (epochs > most) most = epochs, worst = i;
  }
  if (most <= kManyEpochs) return "";
  const OrderedSource& source = order.sources[worst];
  return fmt::format(
      "run.steps: {} steps read each token of {} {} times: the run needs {} tokens, but {} has {}; lower run.steps or "
      "add data",
      config.run.steps, source.path, format_count(most), format_count(run_samples * config.model.seq_len), source.path,
      format_count(static_cast<double>(source.tokens)));
}

std::string no_checkpoints_warning(const CheckpointConfig& checkpoint) {
  if (checkpoint.every > 0 || checkpoint.every_minutes > 0) return "";
  return "checkpoint.every_minutes and checkpoint.every are 0: the run saves a checkpoint only when it ends or "
         "receives a stop signal, and a crash loses all steps; set checkpoint.every_minutes";
}

}  // namespace tri
