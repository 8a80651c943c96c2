// Other training programs: how their steps differ from this program's. `trireme simulate --as` and the rows of
// published measurements name them.
#pragma once

#include "io/base/enum_names.h"
#include "lib/simulate/workload.h"

namespace tri {

enum class Program { kTrireme, kMegatron, kMegatron2021, kMegatron2022, kMegascale, kDeepspeed, kNemo, kFsdp };

template <>
struct EnumNames<Program> {
  static constexpr std::array table{std::pair{Program::kTrireme, std::string_view("trireme")},
                                    std::pair{Program::kMegatron, std::string_view("megatron")},
                                    std::pair{Program::kMegatron2021, std::string_view("megatron_2021")},
                                    std::pair{Program::kMegatron2022, std::string_view("megatron_2022")},
                                    std::pair{Program::kMegascale, std::string_view("megascale")},
                                    std::pair{Program::kDeepspeed, std::string_view("deepspeed")},
                                    std::pair{Program::kNemo, std::string_view("nemo")},
                                    std::pair{Program::kFsdp, std::string_view("fsdp")}};
};

// Gives `workload`, whose mesh and recompute are set, the program's gradient bytes, buckets, overlaps, sharding and
// memory. Other programs split any number of layers over stages (layers_of_stage).
void run_as(Program program, Workload& workload);

// Turns the program's sequence parallelism on or off, after run_as.
void set_sequence_parallel(Program program, bool on, Workload& workload);

}  // namespace tri
