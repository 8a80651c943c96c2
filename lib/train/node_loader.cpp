#include "lib/train/node_loader.h"

#include <algorithm>

namespace tri {
namespace {

bool takes_tokens(const Mesh& mesh) { return mesh.axis("pp").first() || mesh.axis("pp").ends_here(); }
// Every stage has attention, which needs the documents.
bool takes_data(const Config& config, const Mesh& mesh) { return takes_tokens(mesh) || config.data.document_mask; }

Documents documents_of(const Config& config, const Mesh& mesh, const std::vector<int>& members) {
  if (!config.data.document_mask) return Documents::kIgnored;
  const auto takes = [&](int rank) { return takes_tokens(mesh.seen_from(rank)); };
  return std::ranges::any_of(members, takes) ? Documents::kRead : Documents::kOnly;
}

std::unique_ptr<SharedWindow> open_window(Job* job, const std::vector<int>& members, int64_t bytes) {
  try {
    return std::make_unique<SharedWindow>(job, members, bytes);
  } catch (const Fatal& problem) {
    throw Fatal(problem.code(),
                fmt::format("cannot allocate {} bytes of memory shared by {} ranks: {}; free shared memory (/dev/shm), "
                            "lower data.prefetch, or set data.shared: false",
                            bytes, members.size(), problem.what()));
  }
}

}  // namespace

std::vector<int> ring_members(const Config& config, const Mesh& mesh, const std::vector<int>& node_ranks) {
  std::vector<int> members;
  if (!takes_data(config, mesh)) return members;
  for (const int rank : config.data.shared ? node_ranks : std::vector{mesh.world_rank})
    if (takes_data(config, mesh.seen_from(rank))) members.push_back(rank);
  return members;
}

bool reads_tokens(const Config& config, const Mesh& mesh, const std::vector<int>& node_ranks) {
  const std::vector<int> members = ring_members(config, mesh, node_ranks);
  return !members.empty() && members.front() == mesh.world_rank;
}

NodeLoader::NodeLoader(const NodeLoaderContext& context) {
  const Config& config = context.config;
  const Mesh& mesh = context.mesh;
  Device& device = context.device;
  const std::vector<int> members = ring_members(config, mesh, context.node_ranks);
  if (members.empty()) return;
  std::vector<int> dp_ranks;
  for (const int rank : members) dp_ranks.push_back(mesh.seen_from(rank).joint_axis(kSampleAxes).rank);
  std::sort(dp_ranks.begin(), dp_ranks.end());
  dp_ranks.erase(std::unique(dp_ranks.begin(), dp_ranks.end()), dp_ranks.end());
  const auto self = std::find(members.begin(), members.end(), mesh.world_rank);
  const LoaderPlan plan{.shape = {.global_batch = config.data.global_batch,
                                  .micro_batch = config.data.micro_batch,
                                  .dp_rank = mesh.joint_axis(kSampleAxes).rank,
                                  .dp_size = mesh.joint_axis(kSampleAxes).size},
                        .dp_ranks = std::move(dp_ranks),
                        .seq_len = config.model.seq_len,
                        .cp = mesh.axis("cp"),
                        .member = static_cast<int>(self - members.begin()),
                        .members = static_cast<int>(members.size()),
                        .split = context.split,
                        .first_step = context.first_step,
                        .end_step = context.first_step + context.steps,
                        .sizes = context.sizes,
                        .first_sample = context.first_sample,
                        .period = context.period,
                        .num_samples = context.num_samples,
                        .documents = documents_of(config, mesh, members),
                        .windows = context.windows,
                        .parts = context.parts,
                        .prefetch = config.data.prefetch,
                        .recorder = flight_recorder()};
  if (plan.recorder != nullptr)
    plan.recorder->image().loaders[context.split == Split::kTrain ? 0 : 1].reader = members.front();
  {
    const bool trains = context.split == Split::kTrain;
    const ConnectionScope connection(trains ? "memory for data" : "memory for validation data", members);
    window_ = open_window(context.job, members, BatchRing::bytes(plan.ring()));
  }

  const int64_t samples = plan.shape.samples();
  const auto count = static_cast<size_t>(samples * plan.chunks().local_len());
  const size_t inputs = mesh.axis("pp").first() ? count : 0, targets = mesh.axis("pp").ends_here() ? count : 0,
               starts = config.data.document_mask ? static_cast<size_t>(samples * plan.seq_len) : 0,
               all = inputs + targets + starts;
  h_tokens_ = std::make_unique<HostBuffer<int32_t>>(device, 2 * all);
  std::array<StepTokens, 2> buffers;
  for (size_t i = 0; i < 2; ++i) {
    int32_t* begin = h_tokens_->data() + i * all;
    buffers[i] = {.inputs = {begin, inputs},
                  .targets = {begin + inputs, targets},
                  .document_starts = {begin + inputs + targets, starts}};
  }
  loader_ = std::make_unique<Loader>(context.dataset, plan, window_->memory(), buffers, [&device] {
    device.run_checks();
    device.rethrow_fault();
  });
}

StepTokens NodeLoader::next() { return loader_ ? loader_->next() : StepTokens{}; }

}  // namespace tri
