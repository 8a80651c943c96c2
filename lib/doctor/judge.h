// Derives findings from measurements. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/doctor/measurement.h"

namespace tri {

// Compares each measurement with the limits of its rule, with what its hardware reports, and with the median of its
// group over all ranks; texts are compared with the majority's. Returns findings, worst first, then by rule.
//   The median of an even number is the better of the two middle values, so the worse of two values is found.
//   For transfers between two parts, the median is taken over the parts, each with its best transfer, so that one bad
//   part among many does not change it. If most transfers of a part (at least two) are slow, the finding names the part
//   instead of the transfers.
std::vector<Finding> judge(std::span<const Rule> rules, DeviceKind kind, std::span<const Measurement> measurements);

Verdict worst(std::span<const Finding> findings);  // kHealthy if there are none

// The median and the worst of a rule's measurements over all groups, for tables. None for texts, or without numbers.
struct Summary {
  double best = 0, median = 0, worst = 0;
};
std::optional<Summary> summarize(const Rule& rule, std::span<const Measurement* const> measurements);

// `again` repeats measurements of `first` (by rank, rule and part). Keeps the better of each, since disturbances only
// make a number worse. If a rank had a problem with a rule, all of its measurements for that rule are replaced.
void keep_better(std::span<const Rule> rules, std::vector<Measurement>& first, const std::vector<Measurement>& again);

// Formats three significant digits: "112", "3.05", "0.0042".
std::string number_text(double value);

}  // namespace tri
