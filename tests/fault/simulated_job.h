// A training job simulated on one thread: hosts, streams, readers and writers of all ranks proceed like the real ones,
// by the real plans, until nothing moves; then the flight recorders of all ranks are read. An injected fault stops it
// in the middle, with all counters as they would be in a real job.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "io/flight_recorder/record.h"
#include "lib/parallel/mesh.h"
#include "lib/schedule/plan.h"

namespace tri {

struct SimulatedLayout {
  int pp = 1, dp = 1, tp = 1;
  int chunks = 1, num_microbatches = 4;
  int steps = 2;
  bool copies = true;    // tp and dp by copies into the peers' memory, else by collectives
  int queue = 0;         // entries that a stream's queue holds before its host waits; 0: any number
  int ranks_a_node = 4;  // these share a reader
  int world_size() const { return pp * dp * tp; }
};

enum class SimulatedFaultKind {
  kNone,
  kStopped,  // the rank stops after `when` instructions of the whole job
  kGone,
  kHostBusy,  // its host stops before instruction `when`
  kKernel,    // its kernel `when` never ends
  kReader,    // its reader does not read batch `when`
  kWriter,    // its checkpoint `when` is not written
  kSkipped,   // it skips its transfer `when`
  kTransfer,  // its transfer `when` never arrives
};

struct SimulatedFault {
  SimulatedFaultKind kind = SimulatedFaultKind::kNone;
  int world_rank = 0;
  int64_t when = 0;
};

struct SimulatedProgram;

class SimulatedJob {
 public:
  explicit SimulatedJob(const SimulatedLayout& layout);
  ~SimulatedJob();
  // Returns the number of executed instructions. `seed`: the order of ranks and how far each proceeds at a time.
  int64_t run(const SimulatedFault& fault, uint64_t seed);
  bool has_ended() const;  // on all ranks, after run()
  std::vector<RankRecord> records() const;

  // Returns the number of places for a fault of this kind on the rank.
  int64_t places(SimulatedFaultKind kind, int world_rank) const;
  int reader_of(int world_rank) const { return world_rank / layout_.ranks_a_node * layout_.ranks_a_node; }
  // The members of the stuck transfer, after run().
  const std::vector<int>& stuck_members() const { return stuck_members_; }

 private:
  struct Stream {
    int next = 0, enqueued = 0;
    bool begun = false;  // whether the next transfer has begun
  };
  struct Counters {
    uint32_t enqueued = 0, joined = 0, sent = 0, completed = 0, whole = 0;
    ChannelOperation operation = ChannelOperation::kNone;
  };
  struct Rank {
    const SimulatedProgram* program = nullptr;
    Mesh mesh;
    size_t host = 0;
    std::vector<Stream> streams;
    std::vector<Counters> channels;
    std::vector<int> groups;  // [channel]; -1: it has no such channel
    uint32_t actions_enqueued = 0, entered = 0, running = 0, done = 0;
    RunPhase phase = RunPhase::kSetup;
    HostState state = HostState::kWorks;
    int64_t step = 0, moved = 0;
    uint32_t wanted = 0, published = 0;  // in batches; published: if it reads
    WriterState writer = WriterState::kIdle;
    int saves = 0;
    bool frozen = false;
  };
  struct Group {
    RankSet members;
    std::vector<int> joined, sent;  // [n]: members that have joined, or sent, operation n
    bool all(const std::vector<int>& counts, uint32_t n) const {
      return n < counts.size() && counts[n] == members.size;
    }
  };
  // The place of the fault in the programs.
  struct Spot {
    int stream = -1, instruction = -1, last_instruction = -1;  // last_instruction: the end of a transfer in two parts
    int channel = -1;
    uint32_t number = 0;  // number of the operation
  };

  void restart();
  Spot spot_of(const SimulatedFault& fault) const;
  RankSet members_of(const Mesh& mesh, int channel) const;
  bool is_transfer(const Rank& rank, int stream, int instruction) const;
  bool move_host(int rank);
  bool move_stream(int rank, int stream);
  bool move_reader(int rank);
  bool move_writer(int rank);
  bool join(int rank, int channel);
  bool finish(int rank, int channel);
  void count(std::vector<int>& counts, uint32_t n);
  uint32_t number_here(int rank, int channel, uint32_t number) const;
  bool can_read(int rank) const;
  RankRecord record(int rank) const;

  const SimulatedLayout layout_;
  std::vector<SimulatedProgram> programs_;  // one per stage
  std::vector<Rank> ranks_;
  std::vector<Group> groups_;
  SimulatedFault fault_;
  Spot spot_;
  std::vector<int> stuck_members_;
  int64_t clock_ = 0;
};

}  // namespace tri
