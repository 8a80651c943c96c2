// Possible hangs in the jobs of mp_hangs: layouts, places and actions, the cases made of them, and the expected report
// for each.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/format.h"
#include "lib/fault/hang_locator.h"
#include "tests/mp/run_program.h"

namespace tri::hangs {

// Seconds, by the phase of the hang; before the first step all ranks start on few cores. Multiplied by `slower`.
inline constexpr double kDeadline = 12, kStartDeadline = 16;

struct Layout {
  const char* name;  // tp x pp x dp
  int ranks;
  const char* settings;
};
// From TRIREME_TEST_GPUS; 0: tests the CPU.
int gpus();
// Returns the layouts for that number of GPUs, or for the CPU.
const std::vector<Layout>& layouts();
const Layout& layout_at(int index);
int num_layouts();

// A place where something can hang, and the ways in which it can.
struct Place {
  const char* name;
  Strings actions;
};
const std::vector<Place>& places();
bool of_storage(const std::string& place);

// The expected report.
struct Expected {
  HangKind kind;
  bool one_of_several = false;  // the rank is one of those in the cycle, or at the ends of the transfer
};
Expected expected_of(const std::string& place, const std::string& action);

struct Case {
  int layout = 0, rank = 0;
  std::string place;
  int64_t number = 0;
  std::string action;

  std::string rule() const;  // "RANK/PLACE/NUMBER/ACTION"
  std::string text() const;
  // Returns seconds, for ranks that stop in that phase: transfers and data occur in set-up and in steps.
  double deadline(const std::string& phase) const;
};
// Returns the case of "RANK/PLACE/NUMBER/ACTION".
Case case_of(const std::string& layout, const std::string& rule);

// Returns how often a rank of a layout reaches a place in an undisturbed run.
using Occasions = std::function<int64_t(int layout, const std::string& place, int rank)>;

class Draw {
 public:
  explicit Draw(uint64_t seed);
  int64_t below(int64_t end);

 private:
  const uint64_t key_;
  uint64_t num_draws_ = 0;
};

// Every kind of fault, in every phase, on the first two layouts; the number of the occasion is chosen at random.
std::vector<Case> chosen_cases(const Occasions& occasions, Draw& draw);
// Each place and action in turn, in a new random order each time; layout and rank are among those that reach it.
std::vector<Case> randomized_cases(const Occasions& occasions, int count, Draw& draw);

}  // namespace tri::hangs
