#include "io/base/json.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/checkpoint/state.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/model/layer_division.h"
#include "lib/observe/status/check_report.h"
#include "lib/observe/status/estimates.h"
#include "lib/observe/status/order_report.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

// Returns the memory of one rank of each stage. Treats recompute auto, which depends on the GPUs, as none.
Json memory(Config config, const Mesh& mesh) {
  if (config.parallel.recompute == Recompute::kAuto) config.parallel.recompute = Recompute::kNone;
  Json stages = Json::array();
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    const Mesh place = mesh.moved("pp", stage);
    Arena arena;
    const RankTensors tensors = allocate_rank(config, place, arena);
    Json parts = Json::array();
    for (const auto& [name, bytes] : arena.bytes_by_name()) parts.push_back({{"name", name}, {"bytes", bytes}});
    stages.push_back({{"stage", stage},
                      {"bytes", arena.used()},
                      {"checkpoint_host_bytes", state_buffer(state_shards(config, place, tensors.store)).bytes},
                      {"parts", parts}});
  }
  return stages;
}

Json data(const Config& config, const Tokenizer& tokenizer, const Dataset& dataset) {
  Json sources = Json::array();
  const std::vector<OrderedSource>& ordered = dataset.order_fields().sources;
  for (size_t i = 0; i < ordered.size(); ++i) {
    sources.push_back({{"path", ordered[i].path},
                       {"weight", ordered[i].weight},
                       {"tokens", ordered[i].tokens},
                       {"train_samples", dataset.order().num_samples(Split::kTrain, static_cast<int>(i))},
                       {"validation_samples", dataset.order().num_samples(Split::kValidation, static_cast<int>(i))}});
    if (ordered[i].trained) sources.back()["trained_tokens"] = *ordered[i].trained;
  }
  Json object = {{"tokenizer", config.data.tokenizer}, {"vocab", tokenizer.vocab_size()}, {"sources", sources}};
  if (!config.data.stages.empty())
    object["stages"] = parse_json<Json>(order_json(config, dataset.order_fields()))["stages"];
  return object;
}

// Returns all lines that the text report prints as WARNING.
std::vector<std::string> warnings(const Config& config, const JobPlan& plan, const CheckpointEstimate& saves,
                                  const Tokenizer* tokenizer, const Dataset* dataset) {
  std::vector<std::string> all = plan.warnings;
  if (plan.device.kind == DeviceKind::kCuda) {
    all.push_back(dp_warning(config, dp_traffic(config)));
    for (const LayerTraffic& traffic : layer_traffic(config)) all.push_back(layer_warning(config, traffic));
  }
  all.push_back(memory_every_warning(config.checkpoint));
  all.push_back(memory_checkpoint_warning(memory_checkpoint_estimate(config), node_memory(flight_record_folder(), 0)));
  all.push_back(checkpoint_warning(config, saves));
  if (tokenizer != nullptr) all.push_back(vocab_warning(config, tokenizer->vocab_size()));
  if (dataset != nullptr) all.push_back(epochs_warning(config, dataset->order_fields()));
  std::erase(all, "");
  return all;
}

Json layout(const Config& config, const Mesh& mesh) {
  const ParallelConfig& p = config.parallel;
  Json object;
  for (const GridAxis& axis : mesh.grid.axes) object[axis.name] = axis.size;
  object["cp"] = mesh.axis("cp").size;
  object["ep"] = p.ep;
  object["chunks"] = p.chunks;
  object["schedule"] = enum_name(p.schedule);
  object["zero"] = p.zero;
  object["recompute"] = enum_name(p.recompute);
  if (!divides_evenly(config)) object["layers_per_chunk"] = layer_counts(config);
  return object;
}

}  // namespace

std::string check_json(const Config& requested, const JobPlan& plan, const Tokenizer* tokenizer,
                       const Dataset* dataset) {
  const Config config = with_plan(requested, plan);
  const Mesh mesh = mesh_of(config, 0);
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  const int64_t step_tokens = int64_t{config.data.global_batch} * config.model.seq_len;
  const CheckpointEstimate saves = checkpoint_estimate(config, mesh.world_size());
  Json object = {
      {"name", config.run.name},
      {"ranks", mesh.world_size()},
      {"device", enum_name(plan.device.kind)},
      {"parameters", parameters},
      {"layout", layout(config, mesh)},
      {"batch",
       {{"samples", config.data.global_batch},
        {"micro_batch", config.data.micro_batch},
        {"microbatches", microbatches(config)},
        {"tokens", step_tokens}}},
      {"flops_per_token", model_flops_per_token(config)},
      {"flops_per_token_causal", model_flops_per_token(config, AttentionWork::kCausal)},
      {"bubble", simulated_bubble(config)},
      {"dp_bytes_per_step", dp_traffic(config).step_bytes},
      {"cp_bytes_per_step", 0},
      {"ep_bytes_per_step", 0},
      {"memory", memory(config, mesh)},
      {"checkpoint",
       {{"bytes", saves.bytes}, {"write_seconds", saves.write_seconds}, {"interval_seconds", saves.interval_seconds}}},
      {"warnings", warnings(config, plan, saves, tokenizer, dataset)},
      {"data", nullptr}};
  object["checkpoint"]["memory_node_bytes"] = memory_checkpoint_estimate(config).node_bytes;
  const BatchSizes sizes = batch_sizes(config);
  if (!sizes.is_constant())
    for (const BatchSizes::Phase& phase : sizes.phases())
      object["batch"]["ramp"].push_back({{"first_sample", phase.first_sample}, {"samples", phase.size}});
  for (const LayerTraffic& traffic : layer_traffic(config))
    object[traffic.axis + "_bytes_per_step"] = traffic.step_bytes;
  if (tokenizer != nullptr && dataset != nullptr) object["data"] = data(config, *tokenizer, *dataset);
  return object.dump() + "\n";
}

}  // namespace tri
