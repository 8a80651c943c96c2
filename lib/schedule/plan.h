// Pipeline schedules as data. A schedule is a function (pp, num_microbatches, chunks) -> Plan: the list of actions of
// one stage. The executor runs it, the simulator times it, and tests check it for order, deadlock, bubble and memory.
//
// Virtual stage of (chunk c, pp rank r) = c * pp.size + r. Activations flow to the next virtual stage,
// gradients back; the neighbours of rank r are (r ± 1) mod pp.size. In a folded pipeline (zb_v) rank r holds the
// virtual stages r and 2 * pp.size - 1 - r, the shape of a V: the second chunk's activations flow down the ranks, its
// gradients up. At the turn, on the last rank, both chunks exchange their boundary tensors without transfers.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/parallel/mesh.h"

namespace tri {

// kAuto: the job's plan chooses one of the others (lib/engine/job_plan.h); it has no plans.
enum class Schedule { kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kAuto };

template <>
struct EnumNames<Schedule> {
  static constexpr std::array table{std::pair{Schedule::kGpipe, std::string_view("gpipe")},
                                    std::pair{Schedule::k1F1B, std::string_view("1f1b")},
                                    std::pair{Schedule::kInterleaved, std::string_view("interleaved")},
                                    std::pair{Schedule::kZbH1, std::string_view("zb_h1")},
                                    std::pair{Schedule::kZbV, std::string_view("zb_v")},
                                    std::pair{Schedule::kAuto, std::string_view("auto")}};
};

// How transfers between stages overlap compute. kOff: each send must end before the next compute action starts;
// receives still run ahead.
enum class Overlap { kOn, kOff };

// An action of a stage: computes, or transfers a boundary tensor. In a plan with kWeight actions, kBackward computes
// the gradient of the stage's input only, and the kWeight of the same microbatch those of the weights of the layers'
// linears; in other plans kBackward computes both.
enum class ActionKind { kForward, kBackward, kRecvForward, kSendForward, kRecvBackward, kSendBackward, kWeight };
inline constexpr int kNumActionKinds = 7;

template <>
struct EnumNames<ActionKind> {
  static constexpr std::array table{std::pair{ActionKind::kForward, std::string_view("F")},
                                    std::pair{ActionKind::kBackward, std::string_view("B")},
                                    std::pair{ActionKind::kRecvForward, std::string_view("RF")},
                                    std::pair{ActionKind::kSendForward, std::string_view("SF")},
                                    std::pair{ActionKind::kRecvBackward, std::string_view("RB")},
                                    std::pair{ActionKind::kSendBackward, std::string_view("SB")},
                                    std::pair{ActionKind::kWeight, std::string_view("W")}};
};

struct Action {
  ActionKind kind;
  int microbatch;  // 0 .. num_microbatches-1
  int chunk = 0;   // virtual stage on this rank, 0 .. chunks-1
  bool operator==(const Action&) const = default;
};

// The actions of one pp rank, in issue order.
using Plan = std::vector<Action>;

constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kWeight;
}

// All schedules that have plans.
inline constexpr std::array kSchedules{Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZbH1,
                                       Schedule::kZbV};

// Whether the schedule supports several chunks per rank, and whether it supports `chunks` of them.
bool takes_chunks(Schedule schedule);
bool takes_chunks(Schedule schedule, int chunks);
// Whether the virtual stages are folded; those of kAuto, which is not chosen yet, are not.
bool folds(Schedule schedule);
// Returns the place on the axis of a pipeline that runs the schedule.
inline Axis pipeline_axis(Schedule schedule, int rank, int size) { return {rank, size, folds(schedule)}; }
// Whether the schedule's plans have kWeight actions; those of kAuto, which is not chosen yet, have none.
bool splits_backward(Schedule schedule);

// Times of one virtual stage, all in the same unit.
struct StageCost {
  double forward = 1;
  double backward = 2;
  double transfer = 0;  // to send one result: its output, or the gradient of its input
  double weight = 0;    // of a kWeight action; then `backward` is without it
};

// Returns the cost of a virtual stage in units of its forward, where the other parts take as long.
inline StageCost equal_parts(Schedule schedule) {
  return splits_backward(schedule) ? StageCost{.forward = 1, .backward = 1, .weight = 1} : StageCost{};
}

// Returns only the compute actions of this pp rank. Needs takes_chunks(schedule, chunks). Microbatches go
// backward in the order in which they went forward, and so do their kWeight actions, so every schedule and every chunk
// adds its gradients in the same order. interleaved processes groups of pp.size microbatches; any other count is
// valid and takes at most the time of the next multiple.
// `costs`: (pp.size * chunks) by virtual stage, from which zb_v decides what runs next; empty: equal_parts(). All ranks
// of a pipeline must pass the same. The other schedules ignore them.
Plan make_plan(Schedule schedule, Axis pp, int num_microbatches, int chunks, const std::vector<StageCost>& costs = {});

// Returns those of all pp ranks.
std::vector<Plan> make_plans(Schedule schedule, int pp_size, int num_microbatches, int chunks,
                             const std::vector<StageCost>& costs = {});

// Returns the idle time over the work of each of several equal stages: (pp-1) / (chunks · num_microbatches), if the
// backward pass is not split.
double ideal_bubble(int pp, int num_microbatches, int chunks);

// Returns forward passes only, for evaluation and generation.
Plan forward_only(Axis pp, int num_microbatches, int chunks);

// Returns the plan with its transfers: each receive is issued one compute action before its use (after that action, if
// what it receives depends on it), each send directly after the compute that produced its data. Sends and receives are
// independent: each of the four kinds has its own queue. For each pair of neighbours and each direction, sends and
// receives have the same order, so transfers need no tags. With pp.size == 1 and several chunks, a rank sends to
// itself. The turn of a folded pipeline needs no transfers.
Plan with_transfers(const Plan& compute, Axis pp, int chunks);

// Returns the virtual stage of a chunk of a pp rank, and the pp rank that holds a virtual stage.
int virtual_stage(Axis pp, int chunk);
int virtual_stage(Schedule schedule, Axis pp, int chunk);
int rank_of_stage(Schedule schedule, int pp, int virtual_stage);

bool is_first_virtual_stage(Axis pp, int chunk);
bool is_last_virtual_stage(Axis pp, int chunk, int chunks);

// The transfers of chunks that have the same neighbours share a route, with its streams, buffers and order: all chunks
// of a pipeline, but in a folded one each chunk has its own.
constexpr int num_routes(Axis pp) { return pp.folded ? 2 : 1; }
constexpr int route_of(Axis pp, int chunk) { return pp.folded ? chunk : 0; }
// Returns whether the virtual stage after this chunk's is on the same rank of a folded pipeline.
constexpr bool turns_after(Axis pp, int chunk) { return pp.folded && pp.rank + 1 == pp.size && chunk == 0; }
constexpr bool turns_before(Axis pp, int chunk) { return pp.folded && pp.rank + 1 == pp.size && chunk == 1; }

// Returns the kind of action that releases a microbatch's input: kBackward, or kForward in a forward-only plan.
ActionKind last_use(const Plan& plan, int chunk);

// Returns the maximum number of microbatches of `chunk` whose activations are alive at once: from the forward's start
// to the end of the backward, or of the kWeight, which reads the inputs of linears. In a forward-only plan activations
// live only during the action: 1.
int max_in_flight(const Plan& plan, int chunk);

// Returns the maximum number of microbatches of `chunk` that wait for their kWeight action at once: from the backward's
// start to the end of the kWeight. 0 in plans without these.
int max_weights_due(const Plan& plan, int chunk);

// Returns the maximum number of stage inputs of `chunk` alive at once in a plan with transfers: from the issue of the
// receive (or the forward that writes it: on the first virtual stage, and after the turn of a folded pipeline) to the
// backward's end (or the forward's end in a forward-only plan). In a plan of zb_v other than the first virtual stage's,
// the number that its sender may be ahead, which is one more than the activations.
int max_inputs(const Plan& plan, Axis pp, int chunk);

std::string to_string(const Action& action);  // "F0"; chunk 1 and above: "F0.1"
std::string to_string(const Plan& plan);      // "F0 F1 B0 …"

}  // namespace tri
