#include "lib/checkpoint/state_load.h"

#include <algorithm>

#include "io/base/format.h"
#include "lib/checkpoint/weights.h"

namespace tri {
namespace {

// Describes the conversion of moments if the checkpoint stores them with another type than the run uses; else "".
std::string conversion_text(const Manifest& manifest, const std::vector<StateShard>& shards) {
  for (const StateShard& shard : shards)
    if (const TensorRecord* tensor = manifest.find(shard.shard.tensor); tensor && tensor->type != shard.shard.type)
      return fmt::format("moments converted from {} to {}, ", enum_name(tensor->type), enum_name(shard.shard.type));
  return "";
}

}  // namespace

std::unique_ptr<HostBuffer<char>> host_memory(const StateBuffer& buffer, Device& device) {
  return std::make_unique<HostBuffer<char>>(device, static_cast<size_t>(std::max<int64_t>(buffer.bytes, 1)));
}

StateLoad::StateLoad(const Context& context, std::vector<StateShard> shards)
    : shards_(std::move(shards)), buffer_(state_buffer(shards_)) {
  const FoundCheckpoint& from = context.from;
  const std::string average = weight_name("", WeightSet::kAverage);
  for (size_t i = 0; i < shards_.size(); ++i) {
    const TensorShard* shard = &shards_[i].shard;
    const bool is_average = shard->tensor.starts_with(average);
    // A checkpoint of weights only starts a run: the moments stay zero.
    const bool there = !from.weights_alone || is_average || shard->tensor.starts_with(weight_name(""));
    if (!shards_[i].local || !there) continue;
    if (is_average && !from.has_average) {
      TensorShard weights = *shard;
      weights.tensor = weight_name(shard->tensor.substr(average.size()));
      shard = &starts_.emplace_back(std::move(weights));
    }
    wanted_.push_back(i);
    targets_.push_back({shard, nullptr});  // set once there is memory
  }
  if (context.manifest == nullptr) return;
  for (const TensorRecord& tensor : context.manifest->tensors)
    stored_ += num_elements(tensor.shape) * element_bytes(tensor.type);
  if (!from.weights_alone) conversion_ = conversion_text(*context.manifest, shards_);
}

Result<std::unique_ptr<StateLoad>> StateLoad::begin(const Context& context, std::vector<StateShard> shards,
                                                    std::unique_ptr<HostBuffer<char>>& host) {
  std::unique_ptr<StateLoad> load(new StateLoad(context, std::move(shards)));
  auto share = plan_load(context.manifest, load->targets_, context.job, {}, context.readers);
  if (!share) return file_error("{}: {}", context.from.folder, share.error().message);
  load->share_ = std::move(share).value();
  load->host_ = std::move(host);
  const auto prepare = [load = load.get(), &device = context.device] {
    device.use_on_this_thread();
    if (!load->host_) load->host_ = host_memory(load->buffer_, device);
    for (size_t i = 0; i < load->wanted_.size(); ++i)
      load->targets_[i].out = load->host_->data() + load->buffer_.offset[load->wanted_[i]];
  };
  load->thread_ = std::make_unique<LoadThread>(context.from.folder, load->share_, load->targets_, context.job,
                                               LoadLimits{}, prepare);
  return load;
}

Result<int64_t> StateLoad::finish(std::unique_ptr<HostBuffer<char>>& host) {
  auto bytes_read = thread_->finish();
  host = std::move(host_);
  return bytes_read;
}

}  // namespace tri
