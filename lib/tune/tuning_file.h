// tuning.json: what the searches of a start found. The next start of the run then chooses alike, and computes the same
// bits. For one rank.
//   {"version": 1,
//    "gemms": {LIBRARY: {SHAPE: {"form": .., "algorithm": .., "microseconds": .., "first_microseconds": ..}}},
//    "overlap_splits": {SHAPE: {"forward": [{"splits": .., "direct": ..}, ..], "backward": [..]}}}
// The four numbers of splits of a pass are of attention's column- and row-parallel GEMM, then of the MLP's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/retry.h"
#include "kernels/gemm_search.h"
#include "lib/model/layers.h"

namespace tri {

struct Tuning {
  std::vector<GemmChoices> gemms;               // one of each library, by its name
  std::map<std::string, OverlapSplits> splits;  // by what they depend on: overlap_splits.cpp

  bool operator==(const Tuning&) const = default;
};

template <class Archive>
void fields(Archive& archive, GemmChoice& c) {
  archive(c.shape, c.form, c.algorithm, c.microseconds, c.first_microseconds);
}
template <class Archive>
void fields(Archive& archive, GemmChoices& c) {
  archive(c.library, c.choices);
}

// Adds choices; of a shape that `all` has already, the choice in `all` stays.
void add_choices(const GemmChoices& choices, std::vector<GemmChoices>& all);

std::string to_json(const Tuning& tuning);
// Error (kFile): `text` is not of the form above, or holds a field that this version does not know. Its message begins
// with `path`.
Result<Tuning> tuning_from(std::string_view text, const std::string& path);

// The tuning of the run whose folder is `dir`, empty if there is none. Earlier versions have left it in
// gemm_algorithms.txt and overlap_splits.txt, which are read where there is no tuning.json. Error: tuning.json is
// damaged, or storage does not give it, also after several tries; what is stored there is then not known, and a new
// search might choose otherwise. With kDrained where that is transient.
Result<Tuning> read_tuning(const std::string& dir, const Retry& retry = {});

// Whole or not at all. A warning where it cannot be written. Does nothing if there is no such folder.
void write_tuning(const std::string& dir, const Tuning& tuning);

}  // namespace tri
