#include "tests/mp/hang_cases.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "io/base/random.h"
#include "tests/hangs/hangs.h"

namespace tri::hangs {
namespace {

#define TRI_EXPERTS "parallel.ep=2 model.experts=4 model.experts_per_token=2 model.bias=false"
const std::vector<Layout> kCpuLayouts = {
    {"2x2x2", 8, "parallel.tp=2 parallel.pp=2 parallel.dp=2"},
    {"1x4x2", 8, "parallel.tp=1 parallel.pp=4 parallel.dp=2 " TRI_EXPERTS},
    {"2x2x2-messages", 8,
     "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.tp_transfers=collectives parallel.pp_transfers=messages"},
    {"1x4x2-messages", 8,
     "parallel.tp=1 parallel.pp=4 parallel.dp=2 parallel.dp_transfers=collectives parallel.pp_transfers=messages"}};
const std::vector<Layout> kTwoGpuLayouts = {{"2x1x1", 2, "parallel.tp=2"},
                                            {"1x2x1", 2, "parallel.pp=2"},
                                            {"1x1x2", 2, "parallel.dp=2 " TRI_EXPERTS},
                                            {"2x1x1-messages", 2, "parallel.tp=2 parallel.tp_transfers=collectives"},
                                            {"1x2x1-messages", 2, "parallel.pp=2 parallel.pp_transfers=messages"},
                                            {"1x1x2-messages", 2, "parallel.dp=2 parallel.dp_transfers=collectives"}};
const std::vector<Layout> kFourGpuLayouts = {
    {"2x2x1", 4, "parallel.tp=2 parallel.pp=2"},
    {"1x2x2", 4, "parallel.pp=2 parallel.dp=2 " TRI_EXPERTS},
    {"2x2x1-messages", 4,
     "parallel.tp=2 parallel.pp=2 parallel.tp_transfers=collectives parallel.pp_transfers=messages"},
    {"1x2x2-messages", 4,
     "parallel.pp=2 parallel.dp=2 parallel.dp_transfers=collectives parallel.pp_transfers=messages"}};
#undef TRI_EXPERTS

// Returns the cases whose occasion is to be chosen at random.
std::vector<Case> chosen_kinds() {
  return {{0, 5, "forward", 0, "stop"},   {0, 2, "backward", 0, "spin"},        {0, 7, "tp copies", 0, "skip"},
          {0, 0, "data", 0, "sleep"},     {0, 6, "setup", 0, "stop"},           {1, 6, "shard", 0, "fifo"},
          {1, 4, "update", 0, "task"},    {1, 2, "pp send forward", 0, "skip"}, {1, 7, "evaluation", 0, "stop"},
          {1, 3, "dp copies", 0, "spin"}, {1, 5, "experts", 0, "task"}};
}

// A message that is never received may stay in MPI's memory, and no rank misses it.
bool hangs_there(const Case& c) {
  const bool messages = std::string_view(layout_at(c.layout).name).ends_with("messages");
  return !(c.action == "skip" && messages && c.place.find("receive") != std::string::npos);
}

// Chooses one of the rank's occasions. No rank misses a transfer that is skipped at the very end.
int64_t draw_number(const Occasions& occasions, const Case& c, Draw& draw) {
  const int64_t number = occasions(c.layout, c.place, c.rank);
  require(number > 0, "{}: rank {} never comes to {}", layout_at(c.layout).name, c.rank, c.place);
  return 1 + draw.below(c.action == "skip" ? std::max<int64_t>(number / 2, 1) : number);
}

int layout_of(const std::string& name) {
  for (int layout = 0; layout < num_layouts(); ++layout)
    if (name == layout_at(layout).name) return layout;
  throw Failure(fmt::format("no layout {}", name));
}

}  // namespace

int gpus() {
  static const int number = [] {
    const char* text = std::getenv("TRIREME_TEST_GPUS");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return number;
}
const std::vector<Layout>& layouts() {
  return gpus() == 0 ? kCpuLayouts : gpus() < 4 ? kTwoGpuLayouts : kFourGpuLayouts;
}
const Layout& layout_at(int index) { return layouts().at(static_cast<size_t>(index)); }
int num_layouts() { return static_cast<int>(layouts().size()); }

const std::vector<Place>& places() {
  static const std::vector<Place> all = [] {
    std::vector<Place> made;
    for (const char* name : kHostPlaces) made.push_back({name, {"stop", "spin"}});
    for (const char* name : kComputePlaces) made.push_back({name, {"stop", "spin", "task"}});
    made.push_back({"data", {"stop", "sleep"}});
    for (const char* name :
         {"tp copies", "pp send forward", "pp receive forward", "pp send backward", "pp receive backward"})
      made.push_back({name, {"stop", "spin", "skip"}});
    // If a bucket is skipped here, the next one is used instead: no rank waits before the last.
    made.push_back({"dp copies", {"stop", "spin"}});
    // If a collective of MPI is skipped, the next one is used instead: usually an error, not a hang.
    for (const char* name : {"tp", "dp"}) made.push_back({name, {"stop", "spin"}});
    for (const char* name : {"read", "shard", "shard-fsync", "shard-rename", "index", "manifest", "publish", "latest"})
      made.push_back({name, {"stop", "fifo"}});
    return made;
  }();
  return all;
}
bool of_storage(const std::string& place) {
  for (const char* name : {"read", "shard", "shard-fsync", "shard-rename", "index", "manifest", "publish", "latest"})
    if (place == name) return true;
  return false;
}

Expected expected_of(const std::string& place, const std::string& action) {
  if (action == "stop") return {HangKind::kProcessStopped};
  if (action == "spin") return {HangKind::kHostBusy};
  if (action == "task") return {HangKind::kDeviceBusy};
  if (action == "sleep") return {HangKind::kDataReader};
  if (action == "fifo") return {HangKind::kStorage};
  // A transfer by copies is lost; the program cannot observe others, and its ranks wait in a cycle.
  return {place.find("copies") != std::string::npos ? HangKind::kTransfer : HangKind::kCycle, true};
}

std::string Case::rule() const { return fmt::format("{}/{}/{}/{}", rank, place, number, action); }

std::string Case::text() const { return fmt::format("{:<14} {:<32}", layout_at(layout).name, rule()); }

double Case::deadline(const std::string& phase) const {
  constexpr auto is_one_of = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const bool of_steps = is_one_of(kComputePlaces, place) || (is_one_of(kHostPlaces, place) && place != "setup") ||
                        (of_storage(place) && place != "read");
  const bool starts = place == "setup" || place == "read" || phase == "setup" || phase == "load";
  return starts && !of_steps ? kStartDeadline : kDeadline;
}

Case case_of(const std::string& layout, const std::string& rule) {
  Case c{.layout = layout_of(layout)};
  std::istringstream parts(rule);
  std::string rank, number;
  std::getline(parts, rank, '/');
  std::getline(parts, c.place, '/');
  std::getline(parts, number, '/');
  std::getline(parts, c.action, '/');
  c.rank = std::stoi(rank);
  c.number = std::stoll(number);
  return c;
}

Draw::Draw(uint64_t seed) : key_(derive_key(seed, "hangs")) {}

int64_t Draw::below(int64_t end) {
  return static_cast<int64_t>(random_u64(key_, num_draws_++) % static_cast<uint64_t>(end));
}

std::vector<Case> chosen_cases(const Occasions& occasions, Draw& draw) {
  std::vector<Case> cases = chosen_kinds();
  for (Case& c : cases) c.number = draw_number(occasions, c, draw);
  return cases;
}

std::vector<Case> randomized_cases(const Occasions& occasions, int count, Draw& draw) {
  std::vector<Case> cases;
  std::vector<std::pair<std::string, std::string>> round;
  while (static_cast<int>(cases.size()) < count) {
    if (round.empty()) {
      for (const Place& place : places())
        for (const std::string& action : place.actions) round.emplace_back(place.name, action);
      for (size_t i = round.size(); i-- > 1;)
        std::swap(round[i], round[static_cast<size_t>(draw.below(static_cast<int64_t>(i) + 1))]);
    }
    const auto [place, action] = round.back();
    round.pop_back();
    std::vector<Case> candidates;
    for (int layout = 0; layout < num_layouts(); ++layout)
      for (int rank = 0; rank < layout_at(layout).ranks; ++rank)
        if (const Case c{layout, rank, place, 0, action}; occasions(layout, place, rank) > 0 && hangs_there(c))
          candidates.push_back(c);
    require(!candidates.empty(), "no rank of any layout comes to {}", place);
    cases.push_back(candidates[static_cast<size_t>(draw.below(static_cast<int64_t>(candidates.size())))]);
    cases.back().number = draw_number(occasions, cases.back(), draw);
  }
  return cases;
}

}  // namespace tri::hangs
