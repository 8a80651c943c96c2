// Pipeline schedules as data. A schedule is a function (pp, micros, chunks) -> Plan: the list of actions of one stage.
// The executor runs it, the simulator times it, tests check it for order, deadlock, bubble and memory.
//
// Virtual stage of (chunk c, pp rank r) = c * pp.size + r. Activations flow to the next virtual stage, gradients back;
// the neighbours of rank r are (r ± 1) mod pp.size.
#pragma once

#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "lib/parallel/mesh.h"

namespace tri {

enum class Schedule { kGpipe, k1F1B, kInterleaved };

template <>
struct EnumNames<Schedule> {
  static constexpr std::array table{std::pair{Schedule::kGpipe, std::string_view("gpipe")},
                                    std::pair{Schedule::k1F1B, std::string_view("1f1b")},
                                    std::pair{Schedule::kInterleaved, std::string_view("interleaved")}};
};

enum class Op { kForward, kBackward, kRecvForward, kSendForward, kRecvBackward, kSendBackward };

struct Action {
  Op op;
  int micro;      // microbatch, 0 .. micros-1
  int chunk = 0;  // virtual stage on this rank, 0 .. chunks-1
  bool operator==(const Action&) const = default;
};

// The actions of one pp rank, in the order in which they are issued.
using Plan = std::vector<Action>;

// Compute actions only (kForward, kBackward) of this pp rank. gpipe and 1f1b need chunks == 1.
Plan make_plan(Schedule schedule, Axis pp, int micros, int chunks);

// Forward passes alone: evaluation and generation.
Plan forward_only(Axis pp, int micros, int chunks);

// The plan with its transfers: each receive is issued one compute action ahead of its use, each send right after the
// compute that produced its data. Sends and receives are independent: each of the four kinds has a queue of its own.
Plan with_transfers(const Plan& compute, Axis pp, int chunks);

bool is_first_virtual_stage(Axis pp, int chunk);
bool is_last_virtual_stage(Axis pp, int chunk, int chunks);

// Most microbatches of `chunk` whose activations are alive at once: from the forward's start to the backward's end.
// A forward-only plan keeps none beyond the action itself: 1.
int max_in_flight(const Plan& plan, int chunk);

// Most stage inputs of `chunk` alive at once in a plan with transfers: from the issue of the receive (or the forward,
// on the first virtual stage) to the backward's end (or the forward's end in a forward-only plan).
int max_inputs(const Plan& plan, int chunk);

std::string to_string(const Plan& plan);  // "F0 F1 B0 …", chunks as F0.1

}  // namespace tri
