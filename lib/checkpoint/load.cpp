#include "lib/checkpoint/load.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "io/base/hash.h"
#include "io/base/mutex.h"
#include "io/base/parallel.h"
#include "io/checkpoint/shard_reader.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/dtype.h"

namespace tri {
namespace {

// Groups a rank's targets by tensor in the order of first occurrence, on which plan_load and load_shards agree.
std::vector<std::vector<const LoadTarget*>> by_tensor(const std::vector<LoadTarget>& targets) {
  std::vector<std::vector<const LoadTarget*>> groups;
  std::unordered_map<std::string_view, size_t> known;
  for (const LoadTarget& target : targets) {
    const auto [at, is_new] = known.emplace(target.shard->tensor, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(&target);
  }
  return groups;
}

// Sends each rank its `bytes_of(rank)` from rank 0, in two messages per rank: the number of bytes, then the bytes.
std::string scatter(Job& job, const std::function<std::string(int rank)>& bytes_of) {
  const bool root = job.world_rank() == 0;
  std::vector<std::string> messages;
  std::vector<int64_t> sizes;
  std::vector<Job::Outgoing> size_messages, outgoing;
  if (root) {
    for (int rank = 0; rank < job.world_size(); ++rank)
      sizes.push_back(static_cast<int64_t>(messages.emplace_back(bytes_of(rank)).size()));
    for (int rank = 1; rank < job.world_size(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      size_messages.push_back({rank, &sizes[r], sizeof(int64_t)});
      outgoing.push_back({rank, messages[r].data(), sizes[r]});
    }
  }
  int64_t size = 0;
  std::string mine;
  std::vector<Job::Incoming> size_message, incoming;
  if (!root) size_message.push_back({0, sizeof size, [&](const char* data) { std::memcpy(&size, data, sizeof size); }});
  job.exchange(size_messages, size_message);
  if (!root) incoming.push_back({0, size, [&](const char* data) { mine.assign(data, static_cast<size_t>(size)); }});
  job.exchange(outgoing, incoming);
  return root ? std::move(messages[0]) : mine;
}

// Converts `count` elements into `out`, to the type `wanted` (bf16 to f32 or f32 to bf16), and returns its memory.
// Neither needs alignment.
const char* convert(const char* elements, int64_t count, StoredType wanted, std::vector<char>& out) {
  out.resize(static_cast<size_t>(count * element_bytes(wanted)));
  if (wanted == StoredType::kBf16) {
    for (int64_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, elements + 4 * i, 4);
      const bf16 rounded(value);
      std::memcpy(out.data() + 2 * i, &rounded, 2);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      bf16 value;
      std::memcpy(&value, elements + 2 * i, 2);
      const auto exact = static_cast<float>(value);
      std::memcpy(out.data() + 4 * i, &exact, 4);
    }
  }
  return out.data();
}

// Records in this rank's flight recorder that files are being read.
class ReadingScope {
 public:
  ReadingScope() { is(WriterState::kReads); }
  ~ReadingScope() { is(WriterState::kIdle); }
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

 private:
  static void is(WriterState state) {
    if (FlightRecorder* const recorder = flight_recorder()) recorder->enter(state, 0);
  }
};
void shard_is_read() {
  FlightRecorder* const recorder = flight_recorder();
  if (recorder == nullptr) return;
  recorder->writer_goes_on();
  recorder->tick();
}

// One rank's part of a load.
class Loading {
 public:
  Loading(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets, Job& job,
          const LoadLimits& limits)
      : share_(share),
        targets_(by_tensor(targets)),
        job_(job),
        limits_(limits),
        // World rank 0 has seen the checkpoint, so a rank that does not see it yet waits for its mount.
        reader_(folder, share.files, {.missing = Missing::kTransient}),
        threads_(std::clamp(num_cores() / job.node_size(), 1, limits.max_threads)),
        hashes_(share.reads.size()) {}

  Result<void> run() {
    read_own();
    for (const auto& [number, round] : rounds()) run_round(number, round);
    const MutexLock lock(mutex_);
    return failure_;
  }
  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  // A block of a shard that this rank either reads for others or receives.
  struct Block {
    size_t item;  // index into share_.reads or share_.receipts
    int64_t number;
  };
  // All ranks run rounds together. The shards that a rank reads for others are concatenated and cut into windows. A
  // block belongs to the round of the window in which it begins, for its reader and for its receivers.
  struct Round {
    std::vector<Block> reads;     // blocks of a shard are adjacent and ascending
    std::vector<Block> receipts;  // by reader, in the reader's order
  };

  const TensorShard& form_of(int32_t tensor) const { return *targets_[static_cast<size_t>(tensor)].front()->shard; }
  template <class Item>  // ShardRead or ShardReceipt
  Blocks blocks_of(const Item& item) const {
    return Blocks(item.region, element_bytes(item.type), limits_.block_bytes);
  }
  TensorRecord tensor_of(const ShardRead& read) const {
    const TensorShard& form = form_of(read.tensor);
    return {.name = form.tensor, .type = read.type, .shape = form.shape, .shards = {}};
  }
  StoredShard stored_of(const ShardRead& read) const {
    return {.file = share_.files[static_cast<size_t>(read.file)].name,
            .dataset = "",
            .offset = read.offset,
            .region = read.region,
            .checksum = read.checksum};
  }
  std::vector<const LoadTarget*> touched(const ShardRead& read) const {
    std::vector<const LoadTarget*> targets;
    for (const LoadTarget* target : targets_[static_cast<size_t>(read.tensor)])
      if (intersect(read.region, target->shard->region)) targets.push_back(target);
    return targets;
  }
  // Copies `region` of a tensor, stored in the array `elements`, to every target that overlaps it.
  void place(int32_t tensor, StoredType type, const Region& region, const char* elements) const {
    const StoredType wanted = form_of(tensor).type;
    const auto copy = [&](const Region& from, const char* data) {
      for (const LoadTarget* target : targets_[static_cast<size_t>(tensor)])
        copy_region(from, data, target->shard->region, target->out, element_bytes(wanted));
    };
    if (wanted == type) return copy(region, elements);
    constexpr int64_t kConvertedAtOnce = 64 << 10;  // bytes; small compared with a block
    const Blocks parts(region, element_bytes(type), kConvertedAtOnce);
    std::vector<char> converted;
    for (int64_t part = 0; part < parts.count(); ++part) {
      const Region of_part = parts.region(part);
      copy(of_part, convert(elements + parts.offset(part), num_elements(of_part.extent), wanted, converted));
    }
  }

  bool failed() {
    const MutexLock lock(mutex_);
    return !failure_;
  }
  void fail(const Result<void>& result) {
    const MutexLock lock(mutex_);
    if (failure_) failure_ = result;
  }

  // Reads a block into `data` and copies it to its targets. Blocks of a shard are read in order; the last one completes
  // its checksum.
  Result<void> read_block(size_t item, const Blocks& blocks, int64_t number, char* data) {
    const ShardRead& read = share_.reads[item];
    const TensorRecord tensor = tensor_of(read);
    const StoredShard stored = stored_of(read);
    const int64_t bytes = blocks.bytes(number);
    if (auto fetched = reader_.fetch(tensor, stored, blocks.offset(number), bytes, data); !fetched) return fetched;
    std::unique_ptr<Xxh3>& hash = hashes_[item];
    if (number == 0) hash = std::make_unique<Xxh3>();
    hash->update(data, static_cast<size_t>(bytes));
    place(read.tensor, read.type, blocks.region(number), data);
    shard_is_read();
    if (number + 1 < blocks.count()) return {};
    const uint64_t found = hash->digest();
    hash.reset();
    if (found != read.checksum) return damaged_shard(reader_.folder() + "/" + stored.file, tensor, stored, found);
    return {};
  }

  // A shard that no other rank needs is read directly into its target, if it has exactly one.
  Result<void> read_whole(size_t item, std::unique_ptr<char[]>& block) {
    const ShardRead& read = share_.reads[item];
    const std::vector<const LoadTarget*> targets = touched(read);
    if (targets.size() == 1 && form_of(read.tensor).type == read.type)
      return reader_.read(tensor_of(read), stored_of(read), targets[0]->shard->region, targets[0]->out);
    const Blocks blocks = blocks_of(read);
    if (!block) block.reset(new char[static_cast<size_t>(limits_.block_bytes)]);
    for (int64_t b = 0; b < blocks.count(); ++b)
      if (auto done = read_block(item, blocks, b, block.get()); !done) return done;
    return {};
  }

  // Reads in the order of files and offsets; each thread of this rank reads a contiguous part.
  void read_own() {
    std::vector<size_t> own;
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < share_.reads.size(); ++i) {
      const ShardRead& read = share_.reads[i];
      if (!read.receivers.empty()) continue;
      own.push_back(i);
      bytes.push_back(num_elements(read.region.extent) * element_bytes(read.type));
    }
    const ReadingScope reads;
    parallel_by_weight(bytes, threads_, [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> block;
      for (int64_t i = begin; i < end && !failed(); ++i, shard_is_read())
        if (const auto read = read_whole(own[static_cast<size_t>(i)], block); !read) fail(read);
    });
  }

  std::map<int64_t, Round> rounds() const {
    std::map<int64_t, Round> rounds;
    const auto number_of = [&](int64_t position, const Blocks& blocks, int64_t block) {
      return (position + blocks.offset(block)) / limits_.window_bytes;
    };
    for (size_t i = 0; i < share_.reads.size(); ++i) {
      const ShardRead& read = share_.reads[i];
      if (read.receivers.empty()) continue;
      const Blocks blocks = blocks_of(read);
      for (int64_t b = 0; b < blocks.count(); ++b) rounds[number_of(read.position, blocks, b)].reads.push_back({i, b});
    }
    for (size_t i = 0; i < share_.receipts.size(); ++i) {
      const ShardReceipt& receipt = share_.receipts[i];
      const Blocks blocks = blocks_of(receipt);
      for (int64_t b = receipt.first; b < receipt.last; ++b)
        rounds[number_of(receipt.position, blocks, b)].receipts.push_back({i, b});
    }
    return rounds;
  }

  // Reads the blocks to send, then sends and receives. A rank that failed to read still sends arbitrary data: other
  // ranks wait for it and learn of the failure at the end. A round waits only for earlier rounds of other ranks, so
  // there is no deadlock.
  void run_round(int64_t number, const Round& round) {
    const auto place_of = [&](const Block& block, const Blocks& blocks) {
      return share_.reads[block.item].position + blocks.offset(block.number) - number * limits_.window_bytes;
    };
    int64_t bytes = 0;
    std::vector<size_t> first;            // in round.reads, of each shard
    std::vector<int64_t> bytes_of_shard;  // in this round
    for (size_t i = 0; i < round.reads.size(); ++i) {
      const Block& block = round.reads[i];
      const ShardRead& read = share_.reads[block.item];
      const Blocks blocks = blocks_of(read);
      if (i == 0 || block.item != round.reads[i - 1].item) {
        first.push_back(i);
        bytes_of_shard.push_back(0);
      }
      bytes_of_shard.back() += blocks.bytes(block.number);
      bytes = std::max(bytes, place_of(block, blocks) + blocks.bytes(block.number));
    }
    first.push_back(round.reads.size());
    if (static_cast<int64_t>(window_.size()) < bytes) window_ = std::vector<char>(static_cast<size_t>(bytes));
    auto reads = std::make_optional<ReadingScope>();
    parallel_by_weight(bytes_of_shard, threads_, [&](int64_t begin, int64_t end) {
      for (size_t i = first[static_cast<size_t>(begin)]; i < first[static_cast<size_t>(end)] && !failed(); ++i) {
        const ShardRead& read = share_.reads[round.reads[i].item];
        const Blocks blocks = blocks_of(read);
        char* data = window_.data() + place_of(round.reads[i], blocks);
        if (const auto done = read_block(round.reads[i].item, blocks, round.reads[i].number, data); !done) fail(done);
      }
    });

    reads.reset();

    std::vector<Job::Outgoing> outgoing;
    std::vector<Job::Incoming> incoming;
    for (const Block& block : round.reads) {
      const ShardRead& read = share_.reads[block.item];
      const Blocks blocks = blocks_of(read);
      for (const BlockRange& receiver : read.receivers)
        if (receiver.first <= block.number && block.number < receiver.last)
          outgoing.push_back({receiver.rank, window_.data() + place_of(block, blocks), blocks.bytes(block.number)});
    }
    for (const Block& block : round.receipts) {
      const ShardReceipt& receipt = share_.receipts[block.item];
      const Blocks blocks = blocks_of(receipt);
      incoming.push_back({receipt.reader, blocks.bytes(block.number),
                          [this, &receipt, region = blocks.region(block.number)](const char* elements) {
                            place(receipt.tensor, receipt.type, region, elements);
                          }});
    }
    job_.exchange(outgoing, incoming);
  }

  const LoadShare& share_;
  const std::vector<std::vector<const LoadTarget*>> targets_;  // [tensor]
  Job& job_;
  const LoadLimits limits_;
  const TensorReader reader_;
  const int threads_;
  std::vector<std::unique_ptr<Xxh3>> hashes_;  // [read]: for shards that are partly read
  std::vector<char> window_;                   // blocks that are read for others in a round
  Mutex mutex_;
  Result<void> failure_ TRI_GUARDED_BY(mutex_);  // the first failure
};

}  // namespace

Result<LoadShare> plan_load(const Manifest* manifest, const std::vector<LoadTarget>& targets, Job& job,
                            const LoadLimits& limits, const std::vector<int>& readers) {
  std::vector<TensorRequest> mine;
  for (const std::vector<const LoadTarget*>& group : by_tensor(targets)) {
    const TensorShard& form = *group.front()->shard;
    TensorRequest& request = mine.emplace_back(TensorRequest{form.tensor, form.type, form.shape, {}});
    for (const LoadTarget* target : group) request.regions.push_back(target->shard->region);
  }
  const std::vector<std::vector<TensorRequest>> requests = job.gather(mine);
  std::vector<Result<LoadShare>> shares;
  if (job.world_rank() == 0) shares = divide_load(*manifest, requests, limits.block_bytes, readers);
  const std::string bytes = scatter(job, [&](int rank) {
    Result<LoadShare>& share = shares[static_cast<size_t>(rank)];
    std::string text = to_bytes(share);
    share = LoadShare{};
    return text;
  });
  return agree(job, from_bytes<Result<LoadShare>>(bytes));
}

struct LoadThread::State {
  State(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets, Job& of_job,
        const LoadLimits& limits, std::function<void()> prepare)
      : loading(folder, share, targets, of_job, limits),
        job(of_job),
        loaded(std::async(std::launch::async, [this, prepare = std::move(prepare)] {
          const auto begun = std::chrono::steady_clock::now();
          const ReadingScope reads;  // what hangs is found
          if (prepare) prepare();
          Result<void> done = loading.run();
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
          return done;
        })) {}

  Loading loading;
  Job& job;
  double seconds = 0;                // written by the thread
  std::future<Result<void>> loaded;  // last: its destructor waits for the thread, which uses the members above
};

LoadThread::LoadThread(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets,
                       Job& job, const LoadLimits& limits, std::function<void()> prepare)
    : state_(std::make_unique<State>(folder, share, targets, job, limits, std::move(prepare))) {}

LoadThread::~LoadThread() = default;

double LoadThread::seconds() const { return state_->seconds; }

// While ranks wait, all exchange a message every few seconds, so each shows that it is alive, however long the slowest
// takes. The reading thread has its own deadline (lib/fault/hang_clock.h).
Result<int64_t> LoadThread::finish() {
  constexpr std::chrono::seconds kRound{5};
  std::optional<Result<void>> outcome;
  for (bool all = false; !all; all = state_->job.all_of(outcome.has_value())) {
    if (outcome) continue;
    const HostScope waits(HostState::kAwaitsCheckpoint);
    if (state_->loaded.wait_for(kRound) == std::future_status::ready) outcome = state_->loaded.get();
  }
  if (auto done = agree(state_->job, *outcome); !done) return done.error();
  return state_->loading.bytes_read();
}

Result<int64_t> load_shards(const std::string& folder, const LoadShare& share, const std::vector<LoadTarget>& targets,
                            Job& job, const LoadLimits& limits) {
  return LoadThread(folder, share, targets, job, limits).finish();
}

}  // namespace tri
