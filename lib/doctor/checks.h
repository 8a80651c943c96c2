// The table of checks. A row is a check: its rule (how it is judged), when it runs, and the function that measures.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/arena.h"
#include "lib/comm/job/job.h"
#include "lib/comm/peer/memory.h"
#include "lib/doctor/measurement.h"

namespace tri {

// Which rank runs on which node.
struct Nodes {
  std::vector<std::vector<int>> ranks;  // [node]: world ranks, ascending; nodes in the order of their first ranks
  std::vector<std::string> hosts;       // [node]
  int own = 0;                          // this rank's node
  int index = 0;                        // this rank's index among the node's ranks
  const std::vector<int>& own_ranks() const { return ranks[static_cast<size_t>(own)]; }
};

struct CheckContext {
  Job& job;
  Device& device;
  const Nodes& nodes;
  const std::string& storage_dir;     // existing; where checkpoints go
  std::string part;                   // this rank's part in reports: "GPU 3", "rank 3"
  int64_t copy_bytes = 0;             // size of a copy between parts
  Arena* arena = nullptr;             // full checks: holds the tensors below
  Tensor source, landing;             // copy_bytes each
  const PeerArenas* peers = nullptr;  // memory of the node's ranks; null: no_peers says why
  std::string no_peers;
  Stream& stream;
  int tag = 0;  // tag of the next group

  bool speaks() const { return nodes.index == 0; }  // whether this rank measures what the whole node shares
  std::string end(int world_rank) const;            // "node07: GPU 3", for any rank
  std::vector<std::string> ends;                    // [world rank]
};

struct Check {
  Rule rule;
  Depth depth = Depth::kQuick;
  // Collective: all ranks run all checks in the order of the table. Rule, rank and host are filled in by its caller.
  CheckResult (*run)(CheckContext&) = nullptr;
};

const std::vector<Check>& all_checks();
std::vector<Rule> rules_of(const std::vector<Check>& checks);

// nic_loopback: environment variables that, if set from the start, leave NCCL and MPI (with or without UCX) only the
// network cards between the ranks of a node.
inline constexpr const char* kNicLoopback = "nic_loopback";
inline constexpr std::array kNicLoopbackVariables{
    std::pair{"NCCL_P2P_DISABLE", "1"}, std::pair{"NCCL_SHM_DISABLE", "1"},
    std::pair{"OMPI_MCA_btl", "^vader,sm,openib"}, std::pair{"UCX_TLS", "^shm,cuda"}};

// host_checks.cpp
CheckResult check_locked_memory(CheckContext&);
CheckResult check_open_files(CheckContext&);
CheckResult check_shared_memory(CheckContext&);
CheckResult check_free_memory(CheckContext&);
CheckResult check_memory_copy(CheckContext&);
CheckResult check_cpu_clock(CheckContext&);
CheckResult check_transports(CheckContext&);
// link_checks.cpp
CheckResult check_infiniband(CheckContext&);
CheckResult check_infiniband_errors(CheckContext&);
CheckResult check_network_speed(CheckContext&);
CheckResult check_nic_width(CheckContext&);
// storage_checks.cpp
CheckResult check_storage_space(CheckContext&);
CheckResult check_storage_write(CheckContext&);
CheckResult check_storage_read(CheckContext&);
CheckResult check_storage_fsync(CheckContext&);
CheckResult check_storage_rename(CheckContext&);
// gpu_checks.cpp
CheckResult check_driver(CheckContext&);
CheckResult check_gpu_count(CheckContext&);
CheckResult check_gpu_recovery(CheckContext&);
CheckResult check_gpu_ecc(CheckContext&);
CheckResult check_gpu_remaps(CheckContext&);
CheckResult check_gpu_pcie(CheckContext&);
CheckResult check_nvlinks(CheckContext&);
CheckResult check_gpu_clock(CheckContext&);
CheckResult check_gpu_throttling(CheckContext&);
// compute_checks.cpp
CheckResult check_gemm(CheckContext&);
CheckResult check_repeatable_step(CheckContext&);
CheckResult check_equal_steps(CheckContext&);
// transfer_checks.cpp
CheckResult check_host_copies(CheckContext&);
CheckResult check_peer_copies(CheckContext&);
CheckResult check_all_to_all(CheckContext&);
CheckResult check_loopback(CheckContext&);
CheckResult check_nic_loopback(CheckContext&);
CheckResult check_node_links(CheckContext&);
CheckResult check_neighbour_all_reduce(CheckContext&);

}  // namespace tri
