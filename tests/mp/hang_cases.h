// What can hang in mp_hangs' jobs: layouts, places and actions, the cases made of them, and what a report has to say of
// each.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/format.h"
#include "lib/fault/hang_locator.h"
#include "tests/mp/run_program.h"

namespace tri::hangs {

// Seconds, by the phase in which something hangs; until the first step all ranks start on few cores. Times `slower`.
inline constexpr double kDeadline = 12, kStartDeadline = 16;

struct Layout {
  const char* name;  // tp x pp x dp
  int ranks;
  const char* settings;
};
// Of TRIREME_TEST_GPUS; 0: the CPU is tested.
int gpus();
// Those of so many GPUs, or of the CPU.
const std::vector<Layout>& layouts();
const Layout& layout_at(int index);
int num_layouts();

// Where something can hang, and how.
struct Place {
  const char* name;
  Strings actions;
};
const std::vector<Place>& places();
bool of_storage(const std::string& place);

// What a report has to say.
struct Expected {
  HangKind kind;
  bool one_of_several = false;  // the rank is one of those in the circle, or at the transfer's ends
};
Expected expected_of(const std::string& place, const std::string& action);

struct Case {
  int layout = 0, rank = 0;
  std::string place;
  int64_t number = 0;
  std::string action;

  std::string rule() const;  // "RANK/PLACE/NUMBER/ACTION"
  std::string text() const;
  // Seconds, where ranks stand still in that phase: transfers and data are met in set-up and in steps.
  double deadline(const std::string& phase) const;
};
// The case of "RANK/PLACE/NUMBER/ACTION".
Case case_of(const std::string& layout, const std::string& rule);

// How often a rank of a layout reaches a place, in an undisturbed run.
using Occasions = std::function<int64_t(int layout, const std::string& place, int rank)>;

class Draw {
 public:
  explicit Draw(uint64_t seed);
  int64_t below(int64_t end);

 private:
  const uint64_t key_;
  uint64_t num_draws_ = 0;
};

// Every kind of trouble, in every phase, on the first two layouts; the number of the occasion is chosen at random.
std::vector<Case> chosen_cases(const Occasions& occasions, Draw& draw);
// Each place and action in turn, in a new random order each time; layout and rank of those that come there.
std::vector<Case> randomized_cases(const Occasions& occasions, int count, Draw& draw);

}  // namespace tri::hangs
