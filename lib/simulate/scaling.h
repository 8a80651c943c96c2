// How a layout scales: the same model and stages with more and more replicas, steps and start-up; as table, JSON and
// SVG.
#pragma once

#include <string>
#include <vector>

#include "lib/simulate/step_model.h"

namespace tri {

// Strong: the batch stays. Weak: the batch grows with the replicas.
enum class Scaling { kStrong, kWeak };

template <>
struct EnumNames<Scaling> {
  static constexpr std::array table{std::pair{Scaling::kStrong, std::string_view("strong")},
                                    std::pair{Scaling::kWeak, std::string_view("weak")}};
};

// The start of a job. Its ranks tell each other what they are, by calls of all of them (kStartCalls ... in scaling.cpp,
// as HostTraffic counts them: lib/comm/host_traffic.h); groups are made one after the other, each by an id that travels
// down a binomial tree (lib/comm/bootstrap.h) and a ring of handles among its members; one rank of each dp group reads
// its part of a checkpoint and the others have it from there; a rank of each machine reads the first samples.
struct StartUp {
  int64_t groups = 0;          // of all ranks
  int64_t messages = 0;        // that bring them up, ids and handles
  int64_t bytes = 0;           // of those messages
  int64_t calls = 0;           // that all ranks make
  int64_t gathered_bytes = 0;  // that those bring to each rank
  int64_t data_readers = 0;    // ranks that open token files
  double exchange_s = 0, groups_s = 0, load_s = 0;
};
StartUp start_up(const Workload& workload, const Cluster& cluster);

struct ScalingRow {
  Workload workload;
  StepPrediction step;
  StartUp start;
};

// Replicas are doubled from the workload's own dp on, up to `most_ranks`. Strong scaling ends where a replica has no
// microbatch left.
std::vector<ScalingRow> scaling_rows(const Workload& workload, const Cluster& cluster, Scaling scaling, int most_ranks);

std::string to_text(const std::vector<ScalingRow>& rows);
std::string start_up_text(const std::vector<ScalingRow>& rows);
std::string to_json(const std::vector<ScalingRow>& rows);  // a list, one line
// Stacked bars: the parts of each row's step, as shares of it, with the MFU above. Whole in itself.
std::string to_svg(const std::vector<ScalingRow>& rows, const std::string& title);

}  // namespace tri
