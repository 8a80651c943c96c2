// How a layout scales: steps and start-up of the same model and stages with increasing numbers of replicas, as table,
// JSON and SVG.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {

// Strong: the batch stays the same. Weak: the batch grows with the replicas.
enum class Scaling { kStrong, kWeak };

template <>
struct EnumNames<Scaling> {
  static constexpr std::array table{std::pair{Scaling::kStrong, std::string_view("strong")},
                                    std::pair{Scaling::kWeak, std::string_view("weak")}};
};

// The start of a job. Its ranks exchange facts about themselves in calls of all ranks (kStartCalls ... in scaling.cpp,
// as counted by HostTraffic: lib/comm/host/host_traffic.h). Groups are created one after another, each with an id
// broadcast along a binomial tree (lib/comm/host/bootstrap.h) and a ring of handles among its members. One rank of each
// dp group reads its part of a checkpoint and sends it to the others. One rank of each machine reads the first samples.
struct StartUp {
  int64_t groups = 0;          // over all ranks
  int64_t messages = 0;        // to create the groups: ids and handles
  int64_t bytes = 0;           // size of those messages
  int64_t calls = 0;           // made by all ranks
  int64_t gathered_bytes = 0;  // received by each rank in those calls
  int64_t data_readers = 0;    // ranks that open token files
  double exchange_s = 0, groups_s = 0, load_s = 0;
};
StartUp start_up(const Workload& workload, const Cluster& cluster);

struct ScalingRow {
  Workload workload;
  StepPrediction step;
  StartUp start;
};

// Doubles the replicas from the workload's own dp up to `most_ranks`. Strong scaling ends when a replica would have no
// microbatch left.
std::vector<ScalingRow> scaling_rows(const Workload& workload, const Cluster& cluster, Scaling scaling, int most_ranks);

std::string to_text(const std::vector<ScalingRow>& rows);
std::string start_up_text(const std::vector<ScalingRow>& rows);
std::string to_json(const std::vector<ScalingRow>& rows);  // a list, one line
// Draws stacked bars: the parts of each row's step as shares, with the MFU above. Returns a complete SVG document.
std::string to_svg(const std::vector<ScalingRow>& rows, const std::string& title);

}  // namespace tri
