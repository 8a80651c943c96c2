// Compares two checkpoints element by element. Layouts do not matter: tensors are compared whole, by global place.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"

namespace tri {

struct TensorForm {
  StoredType type = StoredType::kF32;
  Coordinates shape;
  bool operator==(const TensorForm&) const = default;
};

struct TensorDiff {
  std::string name;
  std::optional<TensorForm> a, b;       // none: only the other checkpoint has it
  int64_t elements = 0, different = 0;  // compared; of other value (NaN equals NaN). 0 and 0: shapes differ
  double max_abs = 0;                   // largest |a - b|; infinite if only one is NaN
  double max_relative = 0;              // largest |a - b| / max(|a|, |b|)

  bool equal() const;  // both sides have it with the same type and shape, and no element differs
};

struct ConfigDiff {
  std::string field, a, b;
};

struct CheckpointDiff {
  int64_t a_step = 0, b_step = 0;
  std::vector<TensorDiff> tensors;  // those of both sides, by name
  std::vector<ConfigDiff> config;   // fields that differ
  bool equal() const;               // all tensors are equal; configs may differ
};

// Reads the tensors whose names begin with `prefix` in both folders, in blocks, on `threads` threads. Does not verify
// checksums: `verify` does. Calls `progress`, if given, from any thread with the number of further bytes of `a`
// compared. Fails with kFile if a checkpoint cannot be read.
Result<CheckpointDiff> diff_checkpoints(const std::string& a, const std::string& b, const std::string& prefix,
                                        int threads, const std::function<void(int64_t)>& progress = nullptr);

}  // namespace tri
