#include "lib/checkpoint/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "io/base/clock.h"
#include "io/base/file_writer.h"
#include "io/base/format.h"
#include "io/base/hash.h"
#include "io/base/log.h"
#include "io/base/within.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/dims.h"
#include "lib/checkpoint/record_fields.h"

namespace tri {
namespace {

constexpr int kCopierNice = 10;  // as the writer of checkpoints
constexpr int kMostThreads = 4;  // of a rank, for checksums
constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kAlignment = 256;
// For texts and lists of rank 0's table, of which the history of FP8 grows in the first steps.
constexpr int64_t kInfoBytes = int64_t{4} << 20, kTableSpare = int64_t{4} << 10;

struct SegmentSizes {
  int64_t table_capacity = 0, payload_bytes = 0;
};

}  // namespace

std::vector<int> buddies(const Mesh& mesh, const std::vector<std::string>& hosts) {
  const auto size = static_cast<int>(hosts.size());
  const auto all_leave = [&](const std::vector<int>& to) {
    for (size_t rank = 0; rank < to.size(); ++rank)
      if (hosts[rank] == hosts[static_cast<size_t>(to[rank])]) return false;
    return true;
  };
  std::vector<int> to(hosts.size());
  const int dp = mesh.grid.size("dp");
  for (int shift = 1; shift < dp; ++shift) {
    for (int rank = 0; rank < size; ++rank)
      to[static_cast<size_t>(rank)] = mesh.grid.moved(rank, "dp", (mesh.grid.rank_on("dp", rank) + shift) % dp);
    if (all_leave(to)) return to;
  }
  // In the order of hosts, ranks of one host are neighbours.
  std::vector<int> order(hosts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return hosts[static_cast<size_t>(a)] < hosts[static_cast<size_t>(b)]; });
  std::map<std::string, size_t> ranks_of;
  size_t most = 0;
  for (const std::string& host : hosts) most = std::max(most, ++ranks_of[host]);
  if (2 * most > hosts.size()) return {};
  for (size_t place = 0; place < order.size(); ++place)
    to[static_cast<size_t>(order[place])] = order[(place + most) % order.size()];
  return all_leave(to) ? to : std::vector<int>();
}

uint64_t segment_layout(const Config& config, const Mesh& mesh) {
  return xxh3_64(fmt::format("{}, ep {}, {}, ema {}", layout_text(config, mesh), mesh.ep,
                             enum_name(config.optimizer.name), config.optimizer.ema > 0));
}

std::string segment_folder() { return flight_record_folder(); }

struct MemoryCheckpoints::Mapped {
  Mapped(std::unique_ptr<MemorySegment> made, Device& of) : segment(std::move(made)), device(of) {}
  ~Mapped() {
    await();
    if (is_mapped) device.unmap_host(segment->memory());
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  void await() const {
    if (!mapping.valid()) return;
    const HostScope waits(HostState::kAwaitsCheckpoint);
    mapping.wait();
  }

  std::unique_ptr<MemorySegment> segment;
  Device& device;
  bool is_mapped = false;     // by the thread of `mapping`
  std::future<void> mapping;  // none: the device has not copied into it
};

MemoryCheckpoints::MemoryCheckpoints(const Context& context)
    : run_dir_(context.run_dir),
      attempt_(context.checkpoint.attempt),
      host_(context.checkpoint.job.host()),
      layout_(segment_layout(context.checkpoint.config, context.checkpoint.mesh)),
      checkpoints_(context.checkpoints),
      world_rank_(context.checkpoint.job.world_rank()),
      world_size_(context.checkpoint.job.world_size()),
      threads_(std::clamp(num_cores() / context.checkpoint.job.node_size() / 2, 1, kMostThreads)),
      job_(context.checkpoint.job),
      device_(context.checkpoint.device),
      compute_(context.checkpoint.compute),
      stream_(device_.make_stream("memory checkpoint")),
      state_ready_(device_.make_event()),
      copied_(device_.make_event()) {
  const std::vector<StateShard> shards =
      state_shards(context.checkpoint.config, context.checkpoint.mesh, context.checkpoint.store);
  const StateBuffer buffer = state_buffer(shards);
  for (const StateBuffer::Run& run : buffer.runs) {
    runs_.push_back({run.from, payload_bytes_, run.bytes});
    payload_bytes_ = round_up(payload_bytes_ + run.bytes, kAlignment);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].writes) continue;
    const int64_t at = buffer.offset[i];
    const auto run = std::find_if(buffer.runs.begin(), buffer.runs.end(),
                                  [&](const StateBuffer::Run& r) { return r.offset <= at && at < r.offset + r.bytes; });
    TRI_REQUIRE(run != buffer.runs.end(), "a shard of {} is in no copy", shards[i].shard.tensor);
    const TensorShard& shard = shards[i].shard;
    const StoredShard stored{.file = "",
                             .dataset = "",
                             .offset = runs_[static_cast<size_t>(run - buffer.runs.begin())].offset + at - run->offset,
                             .region = shard.region};
    auto& tensors = table_.record.tensors;
    if (tensors.empty() || tensors.back().name != shard.tensor) {
      const auto known = std::find_if(tensors.begin(), tensors.end(),
                                      [&](const TensorRecord& tensor) { return tensor.name == shard.tensor; });
      if (known != tensors.end()) {
        known->shards.push_back(stored);
        continue;
      }
      tensors.push_back({.name = shard.tensor, .type = shard.type, .shape = shard.shape, .shards = {}});
    }
    tensors.back().shards.push_back(stored);
  }
  table_capacity_ =
      round_up(static_cast<int64_t>(to_text(table_).size()) + kTableSpare + (world_rank_ == 0 ? kInfoBytes : 0), 4096);
  // From the payload to the file.
  for (TensorRecord& tensor : table_.record.tensors)
    for (StoredShard& shard : tensor.shards) shard.offset += kSegmentHeaderBytes + table_capacity_;
}

Result<std::unique_ptr<MemoryCheckpoints>> MemoryCheckpoints::create(const Context& context) {
  std::unique_ptr<MemoryCheckpoints> made(new MemoryCheckpoints(context));
  Job& job = made->job_;
  const std::vector<std::string> hosts = job.all_gather(job.host());
  const std::vector<int> to = buddies(context.checkpoint.mesh, hosts);
  const std::vector<SegmentSizes> sizes = job.all_gather(SegmentSizes{made->table_capacity_, made->payload_bytes_});
  if (!to.empty()) {
    made->buddy_ = to[static_cast<size_t>(made->world_rank_)];
    made->sender_ = static_cast<int>(std::find(to.begin(), to.end(), made->world_rank_) - to.begin());
  } else if (made->world_rank_ == 0 && job.world_size() > 1) {
    log_warn("checkpoints in memory have no copies on other nodes: the job has one node, or one that holds most ranks");
  }
  const std::string folder = segment_folder(), run = run_key(made->run_dir_);
  const auto own_of = [&](int rank, int slot) {
    return SegmentName{run, hosts[static_cast<size_t>(rank)], rank, false, slot};
  };
  const auto copy_of = [&](int rank, int slot) { return SegmentName{run, made->host_, rank, true, slot}; };
  // Frees memory before more is reserved.
  if (std::find(hosts.begin(), hosts.end(), made->host_) - hosts.begin() == made->world_rank_) {
    std::vector<std::string> keep;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      if (hosts[rank] != made->host_) continue;
      const auto sender = std::find(to.begin(), to.end(), static_cast<int>(rank));
      for (int slot = 0; slot < 2; ++slot) {
        keep.push_back(own_of(static_cast<int>(rank), slot).text());
        if (sender != to.end()) keep.push_back(copy_of(static_cast<int>(sender - to.begin()), slot).text());
      }
    }
    remove_segments(folder, made->run_dir_, made->host_, keep);
  }
  job.barrier();
  Result<void> mine;
  const auto add = [&](std::vector<std::unique_ptr<Mapped>>& to_list, const SegmentName& name, SegmentSizes of) {
    if (!mine) return;
    auto segment = MemorySegment::create(folder, name, of.table_capacity, of.payload_bytes);
    if (!segment) {
      mine = segment.error();
      return;
    }
    to_list.push_back(std::make_unique<Mapped>(std::move(segment).value(), made->device_));
  };
  for (int slot = 0; slot < 2; ++slot) {
    add(made->own_, own_of(made->world_rank_, slot), {made->table_capacity_, made->payload_bytes_});
    if (made->sender_ >= 0) add(made->copies_, copy_of(made->sender_, slot), sizes[static_cast<size_t>(made->sender_)]);
  }
  if (auto agreed = agree(job, mine); !agreed) {
    for (const auto* list : {&made->own_, &made->copies_})
      for (const auto& mapped : *list) mapped->segment->remove();
    return agreed.error();
  }
  if (context.loaded != nullptr) made->complete_ = made->slot_ = context.loaded->slot;
  made->map_own(1 - made->complete_);
  if (context.loaded != nullptr) made->start(false, {});
  return made;
}

// Registers an own segment with the device, unless that has begun, on a thread: for a GPU it takes about 0.1 s per GB,
// and calls of the driver may wait meanwhile. So create() registers the segment that is written first, alongside the
// first step, and begin() the other.
void MemoryCheckpoints::map_own(int slot) {
  Mapped& mapped = *own_[static_cast<size_t>(slot)];
  if (mapped.mapping.valid()) return;
  mapped.mapping = std::async(std::launch::async, [this, &mapped] {
    device_.use_on_this_thread();
    const MemorySegment& segment = *mapped.segment;
    const auto done = device_.map_host(segment.memory(), static_cast<size_t>(segment.bytes()));
    mapped.is_mapped = done.ok();
    if (!done)
      log_warn("{}: {}; so copies to it are slow, and training waits for them", segment.path(), done.error().message);
  });
}

MemoryCheckpoints::~MemoryCheckpoints() = default;  // the destructor of a future from std::async waits for its thread

int64_t MemoryCheckpoints::bytes() const {
  int64_t bytes = 0;
  for (const auto* list : {&own_, &copies_})
    for (const auto& mapped : *list) bytes += mapped->segment->bytes();
  return bytes;
}

// Waits for the thread. Returns whether its generation is complete here.
bool MemoryCheckpoints::finish_thread() {
  if (!thread_.valid()) return true;
  const HostScope waits(HostState::kAwaitsCheckpoint);
  const Result<void> done = thread_.get();
  if (!done && !warned_) log_warn("checkpoint in memory: {}", done.error().message);
  warned_ = !done;
  return done.ok();
}

double MemoryCheckpoints::settle() {
  if (!in_progress_) return 0;
  const auto begun = Clock::now();
  const bool mine = finish_thread();
  // An incomplete generation is overwritten, never the last complete one.
  if (job_.all_of(mine)) complete_ = slot_;
  in_progress_ = false;
  return seconds_between(begun, Clock::now());
}

void MemoryCheckpoints::begin(const RunProgress& completed) {
  settle();
  slot_ = 1 - complete_;
  own_[static_cast<size_t>(slot_)]->await();
  own_[static_cast<size_t>(slot_)]->segment->begin();
  compute_.record(*state_ready_);
  stream_->wait(*state_ready_);
  char* payload = own_[static_cast<size_t>(slot_)]->segment->payload();
  for (const StateBuffer::Run& run : runs_) stream_->copy(payload + run.offset, run.from, run.bytes);
  stream_->record(*copied_);
  copying_ = true;
  start(true, completed);
  map_own(1 - slot_);
}

void MemoryCheckpoints::before_update() {
  if (copying_) compute_.wait(*copied_);
  copying_ = false;
}

void MemoryCheckpoints::start(bool snapshot, const RunProgress& progress) {
  in_progress_ = true;
  if (!snapshot && buddy_ < 0) return;
  thread_ = std::async(std::launch::async, [this, snapshot, progress, slot = slot_]() -> Result<void> {
    ::setpriority(PRIO_PROCESS, 0, kCopierNice);  // of this thread only; steps have priority
    device_.use_on_this_thread();
    Result<void> own;
    if (snapshot) {
      copied_->synchronize();
      own = complete(slot, progress);
    }
    // The other ranks count on the messages, even if this segment is not complete.
    const Result<void> sent = transfer(slot);
    return own ? sent : own;
  });
}

Result<void> MemoryCheckpoints::complete(int slot, const RunProgress& progress) {
  MemorySegment& segment = *own_[static_cast<size_t>(slot)]->segment;
  SegmentTable table = table_;
  for_shards(table.record, threads_, [&](const TensorRecord& tensor, StoredShard& shard) {
    const auto bytes = static_cast<size_t>(num_elements(shard.region.extent) * element_bytes(tensor.type));
    shard.checksum = xxh3_64(segment.memory() + shard.offset, bytes);
  });
  if (world_rank_ == 0) {
    table.info = checkpoints_.info(progress);
    // Otherwise a restart would resume after steps that metrics.jsonl lacks.
    constexpr std::chrono::seconds kTimeout{10};
    const auto flush = [] {
      flush_required_files();
      return true;
    };
    if (!within(run_dir_ + " (memory)", kTimeout, flush, false))
      return file_error("{}: storage does not take the metrics", run_dir_);
  }
  return segment.finish({.world_rank = world_rank_,
                         .world_size = world_size_,
                         .slot = slot,
                         .step = progress.steps,
                         .layout = layout_,
                         .attempt = attempt_,
                         .run_dir = run_dir_},
                        to_text(table));
}

// Exchanges the segments of a slot with the buddies.
Result<void> MemoryCheckpoints::transfer(int slot) {
  if (buddy_ < 0) return {};
  const MemorySegment& own = *own_[static_cast<size_t>(slot)]->segment;
  MemorySegment& copy = *copies_[static_cast<size_t>(slot)]->segment;
  copy.begin();
  std::vector<Job::Outgoing> outgoing;
  std::vector<Job::Incoming> incoming;
  for (int64_t at = kSegmentStateBytes; at < own.bytes(); at += kBlockBytes)
    outgoing.push_back({buddy_, own.memory() + at, std::min(kBlockBytes, own.bytes() - at)});
  for (int64_t at = kSegmentStateBytes; at < copy.bytes(); at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, copy.bytes() - at);
    incoming.push_back({sender_, bytes, [&copy, at, bytes](const char* data) {
                          std::memcpy(copy.memory() + at, data, static_cast<size_t>(bytes));
                        }});
  }
  job_.exchange(outgoing, incoming);
  return copy.finish_copy([&](std::string_view text) -> Result<void> {
    const auto table = segment_table_from(text);
    if (!table) return table.error();
    return check_payload(table.value().record, {copy.memory(), static_cast<size_t>(copy.bytes())}, copy.path(),
                         threads_);
  });
}

void MemoryCheckpoints::remove() {
  finish_thread();
  for (const auto* list : {&own_, &copies_})
    for (const auto& mapped : *list) mapped->segment->remove();
}

}  // namespace tri
