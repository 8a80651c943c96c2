// The results of checks, and the rules that judge them. Measuring and judging share only these types, so that recorded
// measurements of any machine can be judged again.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "kernels/core/kinds.h"

namespace tri {

enum class Verdict { kHealthy, kSuspect, kBad };  // in the order of severity

template <>
struct EnumNames<Verdict> {
  static constexpr std::array table{std::pair{Verdict::kHealthy, std::string_view("healthy")},
                                    std::pair{Verdict::kSuspect, std::string_view("suspect")},
                                    std::pair{Verdict::kBad, std::string_view("bad")}};
};

enum class Depth { kQuick, kFull };

template <>
struct EnumNames<Depth> {
  static constexpr std::array table{std::pair{Depth::kQuick, std::string_view("quick")},
                                    std::pair{Depth::kFull, std::string_view("full")}};
};

enum class Better {
  kHigher,
  kLower,
  kEqual,  // texts: all of a group must be equal
};

// When a number counts as bad. Absent or 0: no such limit.
struct Limits {
  std::optional<double> suspect_at,
      bad_at;  // worse than this in the rule's unit: minimum, or maximum of what should be low
  double suspect_times = 0, bad_times = 0;  // this many times worse than the group's median
};

// Whether a finding must be confirmed before it counts. Disturbances by other processes are transient; a slow part is
// not.
enum class Repeat { kYes, kNo };

struct Rule {
  const char* name = "";      // "copies"
  const char* measures = "";  // what it measures, for the table
  const char* unit = "";      // "GB/s"; "" for texts and counts
  Better better = Better::kHigher;
  Limits cpu, cuda;                     // by the device of the job
  Verdict unequal = Verdict::kSuspect;  // kEqual: verdict on a text that differs from the majority's
  Repeat repeat = Repeat::kYes;

  const Limits& limits(DeviceKind kind) const { return kind == DeviceKind::kCuda ? cuda : cpu; }
};

// One number or text of one rank.
struct Measurement {
  int rule = 0;  // index into the rules
  int world_rank = 0;
  std::string host;
  std::string part;  // "GPU 3 → GPU 5"; "": the host itself
  // For transfers between two parts: both, with their hosts ("node07: GPU 3"). Else empty.
  std::string end_a, end_b;
  std::string group;  // compared only within the same rule and group
  std::optional<double> value;
  std::string text;              // kEqual
  std::optional<double> wanted;  // the value that the hardware itself reports as possible
  std::string problem;           // why there is no value: a message that names what is broken
};
template <class Archive>
void fields(Archive& archive, Measurement& m) {
  archive(m.rule, m.world_rank, m.host, m.part, m.end_a, m.end_b, m.group, m.value, m.text, m.wanted, m.problem);
}

// The result of a check on a rank: measurements, or the reason why the check does not apply there.
struct CheckResult {
  std::vector<Measurement> measurements;
  std::string skipped;
};
template <class Archive>
void fields(Archive& archive, CheckResult& result) {
  archive(result.measurements, result.skipped);
}

// A part with a bad or suspect measurement.
struct Finding {
  Verdict verdict = Verdict::kSuspect;
  int rule = 0;
  int world_rank = 0;
  std::string host, part;
  std::optional<double> value, median, limit;
  std::string text;  // "node07: GPU 3 → GPU 5 112 GB/s, median 380 (copies)"
};

}  // namespace tri
