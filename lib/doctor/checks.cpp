// The table of all checks. Limits of a CPU job are far below a healthy machine's values, since its ranks may share
// cores with each other and with other users' processes. Limits of a GPU job assume dedicated machines.
#include "lib/doctor/checks.h"

namespace tri {
namespace {
constexpr double kBytesPerMiB = 1048576;

Limits at(std::optional<double> suspect, std::optional<double> bad) { return {.suspect_at = suspect, .bad_at = bad}; }
Limits times(double suspect, double bad) { return {.suspect_times = suspect, .bad_times = bad}; }
Limits both(Limits floors, double suspect, double bad) {
  floors.suspect_times = suspect;
  floors.bad_times = bad;
  return floors;
}

Rule number(const char* name, const char* measures, const char* unit, Better better, Limits cpu, Limits cuda) {
  return {.name = name, .measures = measures, .unit = unit, .better = better, .cpu = cpu, .cuda = cuda};
}
Rule number(const char* name, const char* measures, const char* unit, Better better, Limits limits) {
  return number(name, measures, unit, better, limits, limits);
}
Rule text(const char* name, const char* measures, Verdict unequal) {
  return {.name = name, .measures = measures, .better = Better::kEqual, .unequal = unequal};
}
Rule never_repeated(Rule rule) {
  rule.repeat = Repeat::kNo;
  return rule;
}

}  // namespace

const std::vector<Check>& all_checks() {
  using enum Better;
  constexpr auto kQuick = Depth::kQuick, kFull = Depth::kFull;
  constexpr auto kSuspect = Verdict::kSuspect, kBad = Verdict::kBad;
  static const std::vector<Check> checks = {
      // Limits of containers and resources.
      {number("locked_memory", "limit on locked memory", "MiB", kHigher, at({}, 65536 / kBytesPerMiB)), kQuick,
       check_locked_memory},
      {number("open_files", "limit on open files per process", "", kHigher, at(4096, 512)), kQuick, check_open_files},
      {number("shared_memory", "free space in /dev/shm per rank", "MiB", kHigher, at(16, 4)), kQuick,
       check_shared_memory},
      {number("free_memory", "free memory per rank, within the container's limit", "MiB", kHigher, at(128, 32)), kQuick,
       check_free_memory},
      // The host.
      {number("memory_copy", "memory copy rate of one thread", "GB/s", kHigher, both(at({}, 0.05), 20, 0),
              both(at(2, 0.5), 1.7, 4)),
       kQuick, check_memory_copy},
      {number("cpu_clock", "clock of a core, measured with dependent additions", "GHz", kHigher,
              both(at(0.5, 0.2), 3, 0), both(at(1, 0.5), 1.5, 3)),
       kQuick, check_cpu_clock},
      {text("transports", "transports that MPI uses", kSuspect), kQuick, check_transports},
      // Links.
      {number("infiniband", "rate of InfiniBand ports; 0 = down", "Gb/s", kHigher, times(1.01, 0)), kQuick,
       check_infiniband},
      {number("infiniband_errors", "link failures and link errors of active InfiniBand ports", "", kLower,
              both({}, 1000, 0)),
       kQuick, check_infiniband_errors},
      {number("network_speed", "negotiated speed of network interfaces that are up", "Gb/s", kHigher, times(1.01, 0)),
       kQuick, check_network_speed},
      {number("nic_pcie", "PCIe lanes of network cards", "", kHigher, times(1.01, 0)), kQuick, check_nic_width},
      // Storage, in the folder of checkpoints.
      {number("storage_space", "free space for checkpoints", "GiB", kHigher, at(1, 0.0625)), kQuick,
       check_storage_space},
      {number("storage_write", "rate of writing a file and syncing it to storage", "MB/s", kHigher,
              both(at(1, 0.1), 30, 0), both(at(50, 5), 5, 0)),
       kQuick, check_storage_write},
      {number("storage_read", "rate of reading a file that was just written", "MB/s", kHigher, both(at(1, 0.1), 100, 0),
              both(at(50, 5), 10, 0)),
       kQuick, check_storage_read},
      {number("storage_fsync", "time to append 4 KiB and sync it to storage", "ms", kLower,
              both(at(3000, 20000), 200, 0), both(at(1000, 10000), 20, 0)),
       kQuick, check_storage_fsync},
      {number("storage_rename", "time to rename a file over another one and sync that to storage", "ms", kLower,
              both(at(3000, 20000), 200, 0), both(at(1000, 10000), 20, 0)),
       kQuick, check_storage_rename},
      // GPUs, by NVML.
      {text("driver", "version of the GPU driver", kSuspect), kQuick, check_driver},
      {text("gpu_count", "number and model of the GPUs, from NVML", kBad), kQuick, check_gpu_count},
      {number("gpu_recovery", "recovery action that the driver requests (NVML's number); 0 = none", "", kLower,
              at({}, 0)),
       kQuick, check_gpu_recovery},
      {number("gpu_ecc", "uncorrected memory errors since the driver was loaded", "", kLower, at({}, 0)), kQuick,
       check_gpu_ecc},
      {number("gpu_remaps", "remapping of memory rows: 1 = waits for a GPU reset, 2 = has failed", "", kLower,
              at(0, 1)),
       kQuick, check_gpu_remaps},
      {number("gpu_pcie", "PCIe lanes of GPUs", "", kHigher, times(1.01, 0)), kQuick, check_gpu_pcie},
      {number("nvlinks", "NVLinks that are up", "", kHigher, times(1.01, 0)), kQuick, check_nvlinks},
      {number("gpu_clock", "clock of the GPU's multiprocessors under load", "MHz", kHigher, {},
              both(at(600, 300), 1.25, 2)),
       kQuick, check_gpu_clock},
      {number("gpu_throttling", "1 = heat or the power supply slows the GPU down under load", "", kLower, at(0, {})),
       kQuick, check_gpu_throttling},
      // Full checks.
      {number("gemm", "rate of matrix multiplication", "TFLOP/s", kHigher, both(at({}, 1e-5), 30, 0),
              both(at(100, 10), 1.15, 1.5)),
       kFull, check_gemm},
      {never_repeated(
           number("repeatable_step", "bits that differ when a tiny model is trained twice", "bits", kLower, at({}, 0))),
       kFull, check_repeatable_step},
      {never_repeated(text("equal_steps", "hash of a tiny model after training; equal on equal hardware", kBad)), kFull,
       check_equal_steps},
      {number("host_copies", "rate of copies between host and device", "GB/s", kHigher, both(at({}, 0.02), 30, 0),
              both(at(8, 2), 1.4, 2.5)),
       kFull, check_host_copies},
      {number("peer_copies", "rate of copies between the ranks of a node", "GB/s", kHigher, both(at({}, 0.005), 30, 0),
              both(at(8, 1), 1.3, 2)),
       kFull, check_peer_copies},
      {number("all_to_all", "rate per rank if all ranks of a node copy to each other", "GB/s", kHigher,
              both(at({}, 0.002), 50, 0), both(at(4, 1), 1.4, 3)),
       kFull, check_all_to_all},
      {number("loopback", "rate of TCP to the node's own address", "GB/s", kHigher, both(at({}, 0.01), 50, 0),
              both(at(0.5, 0.1), 3, 10)),
       kFull, check_loopback},
      {number(kNicLoopback, "rate between a node's ranks through its network cards", "GB/s", kHigher,
              both(at({}, 0.001), 20, 0), both(at(1, 0.2), 1.3, 2)),
       kFull, check_nic_loopback},
      {number("node_links", "rate of transfers between neighbouring nodes", "GB/s", kHigher, both(at({}, 0.001), 20, 0),
              both(at(1, 0.2), 1.3, 2)),
       kFull, check_node_links},
      {number("neighbour_all_reduce", "rate of an all-reduce between two neighbouring ranks", "GB/s", kHigher,
              both(at({}, 0.0005), 20, 0), both(at(1, 0.2), 1.3, 2)),
       kFull, check_neighbour_all_reduce},
  };
  return checks;
}

std::vector<Rule> rules_of(const std::vector<Check>& checks) {
  std::vector<Rule> rules;
  for (const Check& check : checks) rules.push_back(check.rule);
  return rules;
}

}  // namespace tri
