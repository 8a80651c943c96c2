// tuning.json: the autotuned choices of a start, for one rank. The next start of the run makes the same choices, and so
// computes the same bits.
//   {"version": 1,
//    "gemms": {LIBRARY: {SHAPE: {"form": .., "algorithm": .., "microseconds": .., "first_microseconds": ..}}},
//    "overlap_splits": {SHAPE: {"forward": [{"splits": .., "direct": ..}, ..], "backward": [..]}}}
// The four numbers of splits of a pass belong to attention's column- and row-parallel GEMM, then to the MLP's.
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
  std::vector<GemmChoices> gemms;               // one per library, by its name
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

// Adds choices; if `all` already has a shape, its choice stays.
void add_choices(const GemmChoices& choices, std::vector<GemmChoices>& all);

std::string to_json(const Tuning& tuning);
// Fails with kFile if `text` does not have this form or has a field that this version does not know. The message begins
// with `path`.
Result<Tuning> tuning_from(std::string_view text, const std::string& path);

// Returns the tuning of the run whose folder is `dir`, empty if there is none. If there is no tuning.json, reads
// gemm_algorithms.txt and overlap_splits.txt of earlier versions. Fails if tuning.json is damaged or can't be read
// after several tries, because new autotuning might choose differently; with kDrained if that is transient.
Result<Tuning> read_tuning(const std::string& dir, const Retry& retry = {});

// Writes atomically; logs a warning if it cannot. Does nothing if there is no such folder.
void write_tuning(const std::string& dir, const Tuning& tuning);

}  // namespace tri
