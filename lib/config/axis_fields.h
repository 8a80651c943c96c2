// The mesh of a config, whose axis sizes are the AXIS_FIELD rows of fields.def.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct AxisField {
  AxisName axis;
  int ParallelConfig::*size;
};

// In the order of fields.def. A row that is not in kAxes does not compile.
inline constexpr std::array kAxisFields = std::to_array<AxisField>({
#define SECTION(type, name, title)
#define FIELD(type, name, default_value, allowed, consequence)
#define FIXED_FIELD FIELD
#define FREE_FIELD FIELD
#define AXIS_FIELD(name, default_value, least, consequence) {#name, &ParallelConfig::name},
#define END_SECTION(type)
#include "lib/config/fields.def"
});
static_assert(kAxisFields.size() == kAxes.size(), "an axis of kAxes has no AXIS_FIELD");

// Returns the mesh of a resolved config, seen from `world_rank`.
Mesh mesh_of(const Config& config, int world_rank);

// Returns the number of ranks along `axes`; 0 if dp is included and not resolved. With more than two axes a number
// above kMostRanks may be inexact.
int64_t ranks_along(AxisSet axes, const ParallelConfig& parallel);
// Returns the axes that reports name, in the order of fields.def: those that are always named, and others with several
// ranks.
std::vector<AxisSize> named_axes(const ParallelConfig& parallel);
// Returns those of `axes` that reports name: "tp 2 x pp 4".
std::string sizes_along(AxisSet axes, const ParallelConfig& parallel);

}  // namespace tri
