// Counts the MPI messages that create the groups of a run: for NCCL groups one per member that receives the id,
// whatever the number of ranks, and a fixed number of collective calls. Counts them through MPI's profiling interface.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <thread>

#include "lib/comm/host/bootstrap.h"
#include "lib/parallel/mesh.h"
#include "tests/mp/mp_test.h"

namespace {
std::atomic<int64_t> g_sends{0}, g_collectives{0};
}

// NOLINTBEGIN: MPI's own names
extern "C" int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  ++g_sends;
  return PMPI_Send(data, count, type, to, tag, comm);
}
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* r) {
  ++g_sends;
  return PMPI_Isend(data, count, type, to, tag, comm, r);
}
extern "C" int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  ++g_collectives;
  return PMPI_Bcast(data, count, type, root, comm);
}
extern "C" int MPI_Allgather(const void* in, int count, MPI_Datatype type, void* out, int counts, MPI_Datatype types,
                             MPI_Comm comm) {
  ++g_collectives;
  return PMPI_Allgather(in, count, type, out, counts, types, comm);
}
extern "C" int MPI_Allgatherv(const void* in, int count, MPI_Datatype type, void* out, const int* counts,
                              const int* offsets, MPI_Datatype types, MPI_Comm comm) {
  ++g_collectives;
  return PMPI_Allgatherv(in, count, type, out, counts, offsets, types, comm);
}
extern "C" int MPI_Iallreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* r) {
  ++g_collectives;
  return PMPI_Iallreduce(in, out, count, type, op, comm, r);
}
extern "C" int MPI_Ibarrier(MPI_Comm comm, MPI_Request* r) {
  ++g_collectives;
  return PMPI_Ibarrier(comm, r);
}
extern "C" int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  ++g_collectives;
  return PMPI_Comm_create_group(comm, group, tag, made);
}
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  ++g_collectives;
  return PMPI_Comm_split_type(comm, type, key, info, made);
}
// NOLINTEND

namespace tri {
namespace {

// Distributes the id of an NCCL group over every axis of the mesh, like Runtime.
TEST(Bootstrap, messages_grow_no_faster_than_ranks) {
  Job& job = *test_job();
  const int n = job.world_size(), tp = n % 4 == 0 ? 4 : 1, pp = n / tp % 4 == 0 ? 4 : 1, dp = n / tp / pp;
  const Mesh mesh = make_mesh(job.world_rank(), {{"tp", tp}, {"dp", dp}, {"pp", pp}});
  const std::vector<std::vector<int>> groups{mesh.group({"tp"}), mesh.group({"dp"}), mesh.group({"pp"}),
                                             mesh.group({"tp", "dp", "pp"})};
  g_sends = g_collectives = 0;
  int64_t expected = 0;  // over all ranks: one message per member except the first of each group
  for (size_t axis = 0; axis < groups.size(); ++axis) {
    std::array<char, 128> id{};
    const int first = groups[axis].front();
    if (first == job.world_rank()) std::memset(id.data(), first % 100 + 1, id.size());
    broadcast_to_members(id.data(), id.size(), groups[axis], static_cast<int>(axis));
    for (const char byte : id) ASSERT_EQ(byte, first % 100 + 1);
    expected += first != job.world_rank();
  }
  int64_t totals[3] = {g_sends, expected, g_collectives};
  PMPI_Allreduce(MPI_IN_PLACE, totals, 3, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (job.world_rank() == 0) fmt::print("{} ranks: {} messages\n", n, static_cast<long>(totals[0]));
  EXPECT_EQ(totals[0], totals[1]);
  EXPECT_LE(totals[0], int64_t{4} * n);  // linear: at most one per rank and axis
  EXPECT_EQ(totals[2], 0) << "collectives over the whole job while groups are made";
}

// The same tree for any number of members: each except the first receives exactly once, from one that received earlier.
TEST(Bootstrap, tree_of_hundreds_has_one_message_a_member) {
  for (const int size : {1, 2, 3, 64, 100, 256, 511, 1024}) {
    std::vector<int> heard(static_cast<size_t>(size), 0), depth(heard.size(), 0);
    int messages = 0, deepest = 0;
    for (int member = 0; member < size; ++member)
      for (const int child : binomial_neighbours(member, size).children) {
        EXPECT_EQ(binomial_neighbours(child, size).parent, member);
        EXPECT_GT(child, member);
        ++heard[static_cast<size_t>(child)];
        depth[static_cast<size_t>(child)] = depth[static_cast<size_t>(member)] + 1;
        deepest = std::max(deepest, depth[static_cast<size_t>(child)]);
        ++messages;
      }
    EXPECT_EQ(messages, size - 1);
    EXPECT_LE(1 << deepest, 2 * size);  // log2
    for (int member = 1; member < size; ++member) EXPECT_EQ(heard[static_cast<size_t>(member)], 1) << member;
  }
}

// The number of collectives at a job's start does not grow with the job.
TEST(Bootstrap, collectives_of_a_start_are_few) {
  Job& job = *test_job();
  g_sends = g_collectives = 0;
  job.broadcast(std::string("config"));
  job.all_of(true);
  EXPECT_EQ(g_sends, 0);
  EXPECT_EQ(g_collectives, 4);  // all present, size, value; all_of
  g_collectives = 0;
  EXPECT_EQ(job.all_gather(job.world_rank()).size(), static_cast<size_t>(job.world_size()));
  EXPECT_EQ(g_sends, 0);
  EXPECT_EQ(g_collectives, 3);  // all present, sizes, values
}

// Ranks that wait for a late rank release their cores.
TEST(Bootstrap, waits_for_a_late_rank_sleep) {
  using std::chrono::milliseconds;
  Job& job = *test_job();
  if (job.world_size() > 2) GTEST_SKIP() << "needs at most two ranks, so that a waiting rank has its own core";
  std::vector<int> all(static_cast<size_t>(job.world_size()));
  std::iota(all.begin(), all.end(), 0);
  const auto device = value_or_throw(open_device(DeviceKind::kCpu, 0));  // NCCL's own set-up spins
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"barrier", [&] { job.barrier(); }},
      {"all_of", [&] { job.all_of(true); }},
      {"broadcast", [&] { job.broadcast(std::string("config")); }},
      {"gather", [&] { job.gather(job.world_rank()); }},
      {"all_gather", [&] { job.all_gather(job.world_rank()); }},
      {"gather_among_members", [&] { gather_among_members(std::string("word"), all); }},
      {"make_group", [&] { job.make_group("test", all, 7, *device); }},
      {"SharedWindow", [&] { SharedWindow(&job, job.node_ranks(), 64); }},
  };
  for (const auto& [name, call] : calls) {
    job.barrier();
    if (job.world_rank() == job.world_size() - 1) std::this_thread::sleep_for(milliseconds(300));
    const double began = seconds(CLOCK_MONOTONIC), worked = seconds(CLOCK_THREAD_CPUTIME_ID);
    call();
    const double all_time = seconds(CLOCK_MONOTONIC) - began, work = seconds(CLOCK_THREAD_CPUTIME_ID) - worked;
    const bool waits = job.world_rank() < job.world_size() - 1;
    EXPECT_LT(waits ? work / all_time : 0, 0.3) << name;
  }
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
