#include "lib/engine/runtime.h"

#include <algorithm>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/groups/nccl_group.h"
#include "lib/comm/host/bootstrap.h"
#include "lib/comm/job/job.h"
#include "lib/comm/peer/channel.h"
#include "lib/comm/peer/windows.h"
#include "lib/engine/wanted_copies.h"
#include "lib/optim/optimizers.h"

namespace tri {
namespace {

// The groups' tags are fixed: an edge with peer copies has no group, so if groups were counted, neighbours would get
// different tags.
constexpr int kTpTag = 0, kDpTag = 1, kWorldTag = 2, kEmbeddingTag = 3, kMatricesTag = 4, kExpertsTag = 5,
              kExpertCopiesTag = 6, kRowsTag = 7, kCpTag = 8, kForwardTag = 9, kBackwardTag = 10;

// The plan requires peer copies, but mapping the peer's memory failed.
[[noreturn]] void throw_no_copies(const char* axis, const std::string& why, const char* instead) {
  throw Fatal(ExitCode::kUsage, fmt::format("parallel.{}_transfers: copies: {}; set {}", axis, why, instead));
}

}  // namespace

Runtime::Runtime(const RankContext& rank, const SharedTensors& shared)
    : device_(rank.device),
      making_(std::make_unique<Making>(rank, shared)),
      overlaps_updates_(may_overlap_updates(rank.config)) {
  const Config& config = rank.config;
  const Mesh& mesh = rank.mesh;
  Device& device = rank.device;
  const Axis tp = mesh.axis("tp"), dp = mesh.joint_axis(kBucketAxes), pp = mesh.axis("pp");
  const std::vector<int> tp_group = mesh.group({"tp"}), dp_group = mesh.group(kBucketAxes);

  compute_ = &add_stream("compute", StreamPriority::kNormal);
  Stream& tp_stream = config.parallel.overlap_tp && tp.size > 1 ? add_stream("tp") : *compute_;
  const bool has_experts = config.model.experts > 0;
  const bool reduces = dp.size > 1 || (has_experts && tp.size > 1);
  Stream& dp_stream = config.parallel.overlap_dp && reduces ? add_stream("dp") : *compute_;
  GroupOnStream tp_collectives(add_collectives("tp", kTpTag, tp_group, tp_stream), tp_stream, device,
                               TimeCategory::kTp);
  GroupOnStream dp_collectives(add_collectives("dp", kDpTag, dp_group, dp_stream), dp_stream, device,
                               TimeCategory::kDp);
  // Sums over stages also wait for the end of the pipeline's bubble, so that time belongs to pp.
  const TimeCategory over_all = pp.size > 1 ? TimeCategory::kPp : dp.size > 1 ? TimeCategory::kDp : TimeCategory::kTp;
  world_ = std::make_unique<GroupOnStream>(
      add_collectives("world", kWorldTag, mesh.group(AxisSet::outside({})), dp_stream), dp_stream, device, over_all);
  tp_ = connect_axis("tp", std::move(tp_collectives), tp_group, shared.tp);
  dp_ = connect_axis("dp", std::move(dp_collectives), dp_group, shared.dp);
  if (mesh.axis("cp").size > 1) {
    Stream& stream = config.parallel.overlap_cp ? add_stream("cp") : *compute_;
    cp_ = std::make_unique<GroupOnStream>(add_collectives("cp", kCpTag, mesh.group({"cp"}), stream), stream, device,
                                          TimeCategory::kCp);
  }
  if (config.optimizer.name == OptimizerKind::kMuon && tp.size > 1 && dp.size > 1)
    matrices_ = std::make_unique<GroupOnStream>(
        add_collectives("matrices", kMatricesTag, mesh.group(kBucketAxes | AxisSet{"tp"}), dp_stream), dp_stream,
        device, TimeCategory::kDp);
  if (has_experts) {
    const auto connect = [&](const char* name, int tag, AxisSet axes) {
      const AxisSet divided = mesh.divided(axes);
      const auto known = [&](const auto& row) { return row.first == divided; };
      if (divided.empty() || std::ranges::any_of(expert_transfers_, known)) return;
      expert_transfers_.emplace_back(
          divided, std::make_unique<CollectiveTransfers>(
                       GroupOnStream(add_collectives(name, tag, mesh.group(divided), dp_stream), dp_stream, device,
                                     TimeCategory::kDp),
                       device));
    };
    connect("expert copies", kExpertCopiesTag, {"edp"});
    connect("rows", kRowsTag, kRowAxes);
    if (config.parallel.ep > 1)
      experts_ = std::make_unique<GroupOnStream>(add_collectives("experts", kExpertsTag, mesh.group({"ep"}), *compute_),
                                                 *compute_, device, TimeCategory::kEp);
    if (!shared.expert_flags.empty()) connect_experts(mesh.group({"ep"}), shared.expert_flags);
  }
  if (pp.size > 1) {
    connect_stages();
    if (config.model.tie_embeddings && pp.end() != 0 && (pp.first() || pp.last()))
      embedding_ = std::make_unique<GroupOnStream>(
          add_collectives("embedding", kEmbeddingTag,
                          {mesh.moved("pp", 0).world_rank, mesh.moved("pp", pp.size - 1).world_rank}, dp_stream),
          dp_stream, device, over_all);
  }
  if (device.kind() != DeviceKind::kCpu && flight_recorder() != nullptr) {
    constexpr int kWordsPerMember = 4;
    reader_ = device.make_stream("progress", StreamPriority::kHigh);
    read_.emplace(device, static_cast<size_t>(kWordsPerMember * std::max(tp.size, dp.size)));
  }
  making_.reset();
}

Runtime::~Runtime() { synchronize(); }

std::unique_ptr<AxisTransfers> Runtime::connect_axis(const char* axis, GroupOnStream collectives,
                                                     const std::vector<int>& world_ranks,
                                                     const PeerCopyTensors& tensors) {
  const RankContext& rank = making_->rank;
  if (world_ranks.size() == 1) return std::make_unique<OneRankTransfers>(std::move(collectives));
  if (tensors.flags.empty()) return std::make_unique<CollectiveTransfers>(std::move(collectives), device_);
  auto arenas = [&] {
    const ConnectionScope connection = connect(fmt::format("{} memory", axis), world_ranks);
    return PeerArenas::open(world_ranks, *rank.job, device_, rank.arena);
  }();
  if (!arenas) throw_no_copies(axis, arenas.error().message, "collectives");
  axis_arenas_.push_back(std::move(arenas).value());
  Stream& copies = add_stream(fmt::format("{} copies", axis));
  Stream& arrivals = add_stream(fmt::format("{} arrivals", axis));
  // tp has over a thousand operations per step: recording progress markers would cost a GPU's streams too much time.
  const ChannelProgress progress(fmt::format("{} copies", axis), ChannelKind::kCopies, world_ranks, collectives.rank(),
                                 device_.kind() == DeviceKind::kCpu ? ChannelCounts::kMarked : ChannelCounts::kRead);
  return std::make_unique<PeerCopyTransfers>(std::move(collectives), axis_arenas_.back()->memory(), tensors, copies,
                                             arrivals, device_, progress);
}

void Runtime::connect_experts(const std::vector<int>& world_ranks, Tensor flags) {
  auto arenas = [&] {
    const ConnectionScope connection = connect("ep memory", world_ranks);
    return PeerArenas::open(world_ranks, *making_->rank.job, device_, making_->rank.arena);
  }();
  if (!arenas) throw_no_copies("ep", arenas.error().message, "collectives");
  axis_arenas_.push_back(std::move(arenas).value());
  const PeerMemory& memory = axis_arenas_.back()->memory();
  expert_windows_ =
      std::make_unique<PeerWindows>(memory, flags, add_stream("ep copies"), device_, TimeCategory::kEp,
                                    ChannelProgress("ep rows", ChannelKind::kCollectives, world_ranks, memory.rank),
                                    ChannelProgress("ep copies", ChannelKind::kCopies, world_ranks, memory.rank));
}

// Returns the arenas of both ranks; null if one can't open the other's memory and the plan allows that (auto).
PeerArenas* Runtime::arenas_of_neighbour(const std::vector<int>& world_ranks) {
  const RankContext& rank = making_->rank;
  const auto [known, is_new] = pp_arenas_.try_emplace(world_ranks);
  if (is_new) {
    const ConnectionScope connection = connect("pp memory", world_ranks);
    auto opened = PeerArenas::open(world_ranks, *rank.job, device_, rank.arena);
    if (opened)
      known->second = std::move(opened).value();
    else if (rank.config.parallel.pp_transfers == PpTransfers::kCopies)
      throw_no_copies("pp", opened.error().message, "messages");
  }
  return known->second.get();
}

// Each one-way edge of the ring of stages has its own connection. Inside one NCCL communicator, a receive that is
// posted early would block a later send.
void Runtime::connect_stages() {
  const RankContext& rank = making_->rank;
  const BoundaryTensors& boundaries = making_->shared.boundaries;
  const int self = rank.mesh.world_rank;
  // `recv_end` and `send_end`: the buffers of the receiver and of the sender.
  const auto connect_edge = [&](const std::string& name, int tag, int source, int target, Link& recv, Link& send,
                                PeerChannelEnd recv_end, PeerChannelEnd send_end) {
    const bool receives = target == self;
    Link& link = receives ? recv : send;
    link.stream = &add_stream(fmt::format("pp {} {}", receives ? "receive" : "send", name));
    const auto add = [&](std::unique_ptr<StageChannel> channel) {
      channels_.push_back(std::move(channel));
      link.channel = channels_.back().get();
    };
    const std::vector<int> pair{std::min(source, target), std::max(source, target)};
    const auto progress = [&] {
      return ChannelProgress("pp " + name, receives ? ChannelKind::kReceive : ChannelKind::kSend, {source, target},
                             receives ? 1 : 0);
    };
    if (rank.config.parallel.pp_transfers != PpTransfers::kMessages)
      if (const PeerArenas* arenas = arenas_of_neighbour(pair)) {
        PeerChannelEnd& local = receives ? recv_end : send_end;
        const auto ends = [&] {
          const ConnectionScope connection = connect("pp " + name, {source, target});
          return gather_among_members(PeerChannel::places_of(arenas->memory(), local), pair);
        }();
        add(std::make_unique<PeerChannel>(arenas->memory(), std::move(local), ends, progress()));
        return;
      }
    CommGroup& group = add_group("pp " + name, tag, {source, target});
    group.set_progress(progress());
    add(std::make_unique<MessageChannel>(group, receives ? 0 : 1));
  };
  const auto flag = [&](int link) { return boundaries.flags.empty() ? Tensor{} : boundaries.flags.flat(link, 1); };
  const Axis pp = rank.mesh.axis("pp");
  // Without boundaries (of a benchmark) there are only messages.
  using Rings = std::vector<std::vector<Tensor>>;
  const auto ring = [](const Rings& rings, size_t i) { return i < rings.size() ? Rings{rings[i]} : Rings{}; };
  const auto inputs = [&](size_t route) { return pp.folded ? ring(boundaries.inputs, route) : boundaries.inputs; };
  for (const StageEdge& edge : own_edges(rank.mesh, ring_end(rank.config))) {
    connect_edge("forward", kForwardTag + 2 * edge.from, edge.source, edge.target, links_.recv_forward,
                 links_.send_forward, {flag(0), inputs(0)}, {flag(1), {}});
    connect_edge("backward", kBackwardTag + 2 * edge.from, edge.target, edge.source, links_.recv_backward,
                 links_.send_backward, {flag(2), ring(boundaries.doutputs, 0)}, {flag(3), {}});
    if (!pp.folded) continue;
    // The second route leads back. The edges of the first have numbers below pp.size.
    const int number = pp.size + edge.from;
    connect_edge("forward 2", kForwardTag + 2 * number, edge.target, edge.source, returning_links_.recv_forward,
                 returning_links_.send_forward, {flag(4), inputs(1)}, {flag(5), {}});
    connect_edge("backward 2", kBackwardTag + 2 * number, edge.source, edge.target, returning_links_.recv_backward,
                 returning_links_.send_backward, {flag(6), ring(boundaries.doutputs, 1)}, {flag(7), {}});
  }
}

CommGroup& Runtime::add_group(const std::string& name, int tag, const std::vector<int>& world_ranks,
                              const CommGroup* same) {
  const RankContext& rank = making_->rank;
  Job* const job = rank.job;
  TRI_REQUIRE(job != nullptr || world_ranks.size() == 1, "the {} group of {} ranks needs a job", name,
              world_ranks.size());
  const ConnectionScope connection = connect("group " + name, world_ranks);
  if (same != nullptr && world_ranks.size() > 1 && device_.kind() == DeviceKind::kCuda)
    groups_.push_back(share_nccl_group(name, *same));
  else
    groups_.push_back(job == nullptr
                          ? make_self_group(name)
                          : job->make_group(name, world_ranks, tag, device_, rank.config.fault.connect_seconds));
  return *groups_.back();
}

ConnectionScope Runtime::connect(const std::string& what, const std::vector<int>& world_ranks) {
  constexpr size_t kMostNamed = 8;
  std::string ranks;
  for (size_t i = 0; i < std::min(world_ranks.size(), kMostNamed); ++i)
    ranks += fmt::format("{}{}", i == 0 ? "" : ", ", world_ranks[i]);
  if (world_ranks.size() > kMostNamed)
    ranks += fmt::format(" ... {} ({} ranks)", world_ranks.back(), world_ranks.size());
  making_->deadline.begin(fmt::format("{} of ranks {}", what, ranks));
  return ConnectionScope(what, world_ranks);
}

CommGroup& Runtime::add_collectives(const std::string& name, int tag, const std::vector<int>& world_ranks,
                                    const Stream& stream) {
  CommGroup*& same = making_->collectives[{&stream, world_ranks}];
  CommGroup& group = add_group(name, tag, world_ranks, same);
  same = &group;
  group.set_progress({name, ChannelKind::kCollectives, world_ranks, group.rank()});
  return group;
}

GroupOnStream& Runtime::matrices() {
  if (matrices_) return *matrices_;
  return dp_->size() > 1 ? dp_->collectives() : tp_->collectives();
}

std::vector<ExpertTransfers> Runtime::expert_transfers() {
  std::vector<ExpertTransfers> rows;
  for (const auto& [axes, transfers] : expert_transfers_) rows.push_back({axes, transfers.get()});
  return rows;
}

Stream& Runtime::add_stream(const std::string& name, StreamPriority priority) {
  streams_.push_back(device_.make_stream(name, priority));
  return *streams_.back();
}

PipelineLinks Runtime::links() const { return links_; }

PipelineLinks Runtime::returning_links() const { return returning_links_; }

UpdateStreams Runtime::update_streams() {
  if (overlaps_updates_ && update_streams_.sums == nullptr)
    update_streams_ = {&add_stream("sums", StreamPriority::kNormal), &add_stream("updates")};
  return update_streams_;
}

std::vector<NamedTimes> Runtime::times() const {
  std::vector<NamedTimes> rows;
  for (const auto& stream : streams_)
    if (const auto times = stream->times()) rows.push_back({stream->name(), *times});
  return rows;
}

void Runtime::read_progress() {
  if (!reader_) return;
  device_.use_on_this_thread();
  try {
    for (AxisTransfers* const axis : {tp_.get(), dp_.get()}) axis->read_progress(*reader_, *read_);
  } catch (const Fatal&) {  // a device has failed; the training thread reports it
  }
}

std::vector<std::pair<std::string, StreamActivity>> Runtime::activities() {
  std::vector<std::pair<std::string, StreamActivity>> rows;
  for (const auto& stream : streams_) {
    try {
      rows.emplace_back(stream->name(), stream->busy() ? StreamActivity::kBusy : StreamActivity::kIdle);
    } catch (const Fatal&) {
      rows.emplace_back(stream->name(), StreamActivity::kFailed);
    }
  }
  return rows;
}

std::vector<AxisGroup> Runtime::axis_groups() {
  std::vector<AxisGroup> groups{{"tp", &tp_->collectives()}};
  if (embedding_) groups.push_back({"pp", embedding_.get()});
  return groups;
}

std::vector<Stream*> Runtime::streams() const {
  std::vector<Stream*> all;
  for (const auto& stream : streams_) all.push_back(stream.get());
  return all;
}

void Runtime::reset_times() {
  for (const auto& stream : streams_) stream->reset_times();
}

void Runtime::synchronize() {
  for (const auto& stream : streams_) stream->synchronize();
}

}  // namespace tri
