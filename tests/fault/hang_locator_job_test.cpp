// The locator on jobs that were simulated until they stopped, with one fault each: it names the faulty rank and the
// kind of fault.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "lib/fault/hang_locator.h"
#include "tests/fault/simulated_job.h"

namespace tri {
namespace {

using enum SimulatedFaultKind;

constexpr std::array kFaults{kStopped, kGone, kHostBusy, kKernel, kReader, kWriter, kSkipped, kTransfer};

// Collectives and copies, chunks, and queues that block hosts like those of a GPU.
constexpr std::array kLayouts{
    SimulatedLayout{.pp = 2, .dp = 2, .tp = 2},
    SimulatedLayout{.pp = 4, .dp = 2, .tp = 1},
    SimulatedLayout{.pp = 1, .dp = 4, .tp = 2},
    SimulatedLayout{.pp = 4, .dp = 1, .tp = 2, .copies = false},
    SimulatedLayout{.pp = 2, .dp = 2, .tp = 2, .chunks = 2, .copies = false},
    SimulatedLayout{.pp = 4, .dp = 2, .tp = 4, .num_microbatches = 6, .queue = 6},
    SimulatedLayout{.pp = 2, .dp = 2, .tp = 2, .chunks = 2, .queue = 5},
    SimulatedLayout{.pp = 4, .dp = 2, .tp = 2, .chunks = 2, .num_microbatches = 8, .queue = 9}};

HangKind kind_of(SimulatedFaultKind fault) {
  const std::map<SimulatedFaultKind, HangKind> kinds{
      {kStopped, HangKind::kProcessStopped}, {kGone, HangKind::kProcessGone},  {kHostBusy, HangKind::kHostBusy},
      {kKernel, HangKind::kDeviceBusy},      {kReader, HangKind::kDataReader}, {kWriter, HangKind::kStorage},
      {kSkipped, HangKind::kCycle},          {kTransfer, HangKind::kTransfer}};
  return kinds.at(fault);
}

std::string text_of(const SimulatedLayout& layout, const SimulatedFault& fault, const HangVerdict& verdict) {
  return fmt::format("pp{} dp{} tp{} chunks {} copies {} queue {}: fault {} of rank {} at {}: {}: {}", layout.pp,
                     layout.dp, layout.tp, layout.chunks, layout.copies, layout.queue, static_cast<int>(fault.kind),
                     fault.world_rank, fault.when, enum_name(verdict.kind), verdict.headline);
}

// `reader`: of the faulty rank. `stuck`: members of the stuck transfer, ascending.
void expect_named(const SimulatedFault& fault, const HangVerdict& verdict, int reader, std::vector<int> stuck) {
  EXPECT_EQ(verdict.kind, kind_of(fault.kind));
  ASSERT_FALSE(verdict.suspects.empty());
  std::vector<int> named;
  for (const HangSuspect& suspect : verdict.suspects) named.push_back(suspect.world_rank);
  std::sort(named.begin(), named.end());
  std::sort(stuck.begin(), stuck.end());
  if (fault.kind == kTransfer) {
    EXPECT_TRUE(std::includes(stuck.begin(), stuck.end(), named.begin(), named.end()));
    EXPECT_EQ(named.size(), std::min<size_t>(stuck.size(), 64));
  } else if (fault.kind == kSkipped) {
    EXPECT_GE(verdict.cycle.size(), 2u);
    for (size_t i = 0; i < verdict.cycle.size(); ++i)
      EXPECT_EQ(verdict.cycle[i].to, verdict.cycle[(i + 1) % verdict.cycle.size()].from);
  } else {
    EXPECT_EQ(named, std::vector{fault.kind == kReader ? reader : fault.world_rank});
  }
}

// Returns whether the fault stopped the job.
bool expect_located(SimulatedJob& job, const SimulatedLayout& layout, const SimulatedFault& fault, uint64_t seed) {
  job.run(fault, seed);
  if (job.has_ended()) return false;
  const std::vector<RankRecord> records = job.records();
  const HangTrigger trigger{.world_rank = static_cast<int>(seed % records.size()), .seconds = 60};
  const HangVerdict verdict = locate_hang(records, trigger);
  SCOPED_TRACE(text_of(layout, fault, verdict));
  expect_named(fault, verdict, job.reader_of(fault.world_rank), job.stuck_members());
  return true;
}

TEST(HangLocatorJob, a_job_without_a_fault_ends) {
  for (const SimulatedLayout& layout : kLayouts) {
    SimulatedJob job(layout);
    job.run({}, 1);
    EXPECT_TRUE(job.has_ended());
  }
}

TEST(HangLocatorJob, a_hang_at_every_place_of_a_program_is_located) {
  for (const SimulatedLayout& layout : {kLayouts[0], kLayouts[4], kLayouts[5]}) {
    SimulatedJob job(layout);
    for (const int rank : {0, layout.world_size() / 2 - 1, layout.world_size() - 2})
      for (const SimulatedFaultKind kind : {kHostBusy, kKernel, kReader, kWriter, kSkipped, kTransfer}) {
        // In a cycle of waits, a host that runs alone because its queue is full looks like the faulty one.
        if (kind == kSkipped && layout.queue > 0) continue;
        const int64_t places = job.places(kind, rank);
        ASSERT_GT(places, 0);
        for (int64_t when = 0; when < places && !HasFailure(); ++when) {
          const bool stands = expect_located(job, layout, {kind, rank, when}, static_cast<uint64_t>(when));
          EXPECT_TRUE(stands || kind == kWriter) << "fault " << static_cast<int>(kind) << " at " << when;
        }
      }
  }
}

TEST(HangLocatorJob, a_process_that_stops_or_ends_at_any_moment_is_found) {
  int located = 0;
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    const SimulatedLayout& layout = kLayouts[random() % kLayouts.size()];
    SimulatedJob job(layout);
    const int64_t all = job.run({}, seed);
    const SimulatedFault fault{random() % 2 == 0 ? kStopped : kGone,
                               static_cast<int>(random() % static_cast<uint64_t>(layout.world_size())),
                               static_cast<int64_t>(random() % static_cast<uint64_t>(all))};
    located += expect_located(job, layout, fault, seed) ? 1 : 0;
  }
  EXPECT_GE(located, 390);
}

// Turns records of dp 2 into those of `layout.dp`: the pipeline of `faulty` once, at dp rank `at`, all others equal. A
// node holds one tp group.
class Widened {
 public:
  Widened(const SimulatedLayout& layout, int faulty, int at) : layout_(layout), faulty_(faulty), at_(at) {}

  std::vector<RankRecord> records(const std::vector<RankRecord>& narrow) const {
    std::vector<RankRecord> wide;
    for (int rank = 0; rank < layout_.world_size(); ++rank) {
      const Mesh mesh = make_mesh(rank, {{"tp", layout_.tp}, {"dp", layout_.dp}, {"pp", layout_.pp}});
      const int column = mesh.axis("dp").rank == at_ ? faulty_ : 1 - faulty_;
      wide.push_back(
          narrow[static_cast<size_t>((mesh.axis("pp").rank * 2 + column) * layout_.tp + mesh.axis("tp").rank)]);
      RankRecord& r = wide.back();
      r.world_rank = rank;
      r.world_size = layout_.world_size();
      r.grid = mesh.grid;
      r.loaders[0].reader = rank_at(r.loaders[0].reader, mesh.axis("dp").rank);
      for (ChannelRecord& channel : r.channels) move(channel, mesh);
    }
    return wide;
  }
  int rank_at(int narrow_rank, int dp) const {
    const Mesh mesh = make_mesh(narrow_rank, {{"tp", layout_.tp}, {"dp", 2}, {"pp", layout_.pp}});
    return (mesh.axis("pp").rank * layout_.dp + dp) * layout_.tp + mesh.axis("tp").rank;
  }

 private:
  void move(ChannelRecord& channel, const Mesh& mesh) const {
    RankSet& members = channel.members;
    if (channel.name == "world" || channel.name == "job") {
      members = {0, 1, layout_.world_size()};
      channel.index = mesh.world_rank;
    } else if (channel.name == "dp") {
      members = {mesh.moved("dp", 0).world_rank, layout_.tp, layout_.dp};
      channel.index = mesh.axis("dp").rank;
    } else {
      const int first = rank_at(members.first, mesh.axis("dp").rank),
                second = rank_at(members.rank(1), mesh.axis("dp").rank);
      members.first = first;
      members.stride = second - first;
    }
  }

  const SimulatedLayout layout_;
  const int faulty_, at_;
};

TEST(HangLocatorJob, one_faulty_rank_of_12288_is_found) {
  SimulatedLayout narrow{.pp = 8, .dp = 2, .tp = 8, .num_microbatches = 10, .ranks_a_node = 8};
  SimulatedLayout wide = narrow;
  wide.dp = 192;
  ASSERT_EQ(wide.world_size(), 12288);
  SimulatedJob job(narrow);
  const int64_t all = job.run({}, 1);
  for (uint64_t seed = 0; seed < 32 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    SimulatedFault fault{.kind = kFaults[seed % kFaults.size()],
                         .world_rank = static_cast<int>(random() % static_cast<uint64_t>(narrow.world_size()))};
    const bool any_time = fault.kind == kStopped || fault.kind == kGone;
    fault.when = static_cast<int64_t>(
        random() % static_cast<uint64_t>(any_time ? all / 2 : job.places(fault.kind, fault.world_rank)));
    job.run(fault, seed);
    if (job.has_ended()) continue;  // it was the last checkpoint
    const int column =
        make_mesh(fault.world_rank, {{"tp", narrow.tp}, {"dp", narrow.dp}, {"pp", narrow.pp}}).axis("dp").rank;
    const int at = static_cast<int>(random() % static_cast<uint64_t>(wide.dp));
    const Widened widened(wide, column, at);
    const HangVerdict verdict = locate_hang(widened.records(job.records()), {.world_rank = 0, .seconds = 60});

    SimulatedFault wide_fault = fault;
    wide_fault.world_rank = widened.rank_at(fault.world_rank, at);
    SCOPED_TRACE(text_of(wide, wide_fault, verdict));
    std::vector<int> stuck = job.stuck_members();
    const bool over_all = stuck.size() == static_cast<size_t>(narrow.world_size());
    const bool over_dp = stuck.size() == 2 && stuck[1] - stuck[0] == narrow.tp;
    std::vector<int> members;
    for (const int rank : stuck)
      for (int dp = 0; dp < wide.dp; ++dp)
        if (over_all || over_dp || dp == at) members.push_back(widened.rank_at(rank, dp));
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    expect_named(wide_fault, verdict, widened.rank_at(job.reader_of(fault.world_rank), at), members);
    const bool holds_all = fault.kind != kSkipped && fault.kind != kTransfer;
    if (holds_all) {
      EXPECT_EQ(verdict.num_waiting, wide.world_size() - 1);
    }
  }
}

}  // namespace
}  // namespace tri
