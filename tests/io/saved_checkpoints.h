// Checkpoints of small tensors whose bytes follow from a seed, for tests of failures.
#pragma once

#include <fmt/ranges.h>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "io/checkpoint/verify.h"
#include "tests/io/checkpoint_files.h"
#include "tests/io/forked.h"
#include "tests/storage/points.h"

namespace tri {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns tensors whose bytes follow from `seed`.
inline std::vector<TestTensor> tensors_of(uint64_t seed, int64_t rows = 6) {
  return {make_tensor(seed, "model/w", StoredType::kF32, {rows, 256}),
          make_tensor(seed, "optimizer/w/exp_avg", StoredType::kBf16, {rows, 256})};
}

inline Result<void> save(const std::string& dir, int64_t step, const std::string& attempt, uint64_t seed,
                         int64_t rows) {
  auto written = write_checkpoint(dir, step, attempt, tensors_of(seed, rows), 2, 3, seed, static_cast<int64_t>(seed));
  if (!written) return written.error();
  return publish(dir, step, attempt);
}

// Returns "" if the newest checkpoint is `first` to `last`, complete, and made from the seed that it names.
inline std::string fault_of_newest(const std::string& dir, int64_t first, int64_t last, int64_t rows) {
  const auto newest = newest_checkpoint(dir);
  if (!newest) return newest.error().message;
  if (!newest.value()) return "no checkpoint";
  const CheckpointEntry& entry = *newest.value();
  if (entry.step < first || entry.step > last) return fmt::format("step {} of {} to {}", entry.step, first, last);
  const auto reader = CheckpointReader::open(entry.path);
  if (!reader) return reader.error().message;
  const auto seed = static_cast<uint64_t>(reader.value().manifest().info.numbers.at("mark"));
  for (const TestTensor& tensor : tensors_of(seed, rows)) {
    Bytes got(tensor.bytes.size());
    const auto read = reader.value().read(tensor.shard(full_region(tensor.shape)), got.data());
    if (!read) return read.error().message;
    if (got != tensor.bytes) return tensor.name + " differs";
  }
  const auto report = verify(entry.path, 1);
  if (!report) return report.error().message;
  return fmt::format("{}", fmt::join(report.value().problems, "; "));
}

// Runs `act` in a child on storage that obeys `rule`; returns its result.
inline std::string on_storage(const std::string& dir, const std::string& rule,
                              const std::function<std::string()>& act) {
  return in_child([&] {
    watch_storage(dir, rule);
    return act();
  });
}

inline std::vector<std::string> names_of(const std::string& dir) {
  std::vector<std::string> names = value_or_throw(list_folder(dir));
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the lines of a trace that a child wrote, and removes it.
inline std::vector<std::string> lines_of_trace(const std::string& prefix) {
  std::vector<std::string> lines;
  std::istringstream trace(read_all(prefix + ".0"));
  for (std::string line; std::getline(trace, line);) lines.push_back(line);
  std::filesystem::remove(prefix + ".0");
  return lines;
}

}  // namespace tri
