// From measurements to findings: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/doctor/measurement.h"

namespace tri {

// Each measurement against the limits of its rule, against what its hardware can, and against the median of its group
// over all ranks; texts against the majority's. Worst first, then in the order of the rules.
//   The median of an even number is the better of the two in the middle: of two, the worse one is found.
//   Of transfers between two parts the median is that of the parts, each of which counts with its best transfer, so
//   that one bad part of many does not move it. A part most of whose transfers (two at least) are slow is named in
//   their place.
std::vector<Finding> judge(std::span<const Rule> rules, DeviceKind kind, std::span<const Measurement> measurements);

Verdict worst(std::span<const Finding> findings);  // kHealthy of none

// What a rule's measurements are compared with, over all groups: for tables. Nothing of texts, or of none.
struct Summary {
  double best = 0, median = 0, worst = 0;
};
std::optional<Summary> summarize(const Rule& rule, std::span<const Measurement* const> measurements);

// `again` has measured what `first` had (by rank, rule and part): of each the better one stays, since disturbance only
// makes a number worse. What a rank measured for a rule of which it had a problem is replaced as a whole.
void keep_better(std::span<const Rule> rules, std::vector<Measurement>& first, const std::vector<Measurement>& again);

// "112", "3.05", "0.0042": three significant digits.
std::string number_text(double value);

}  // namespace tri
