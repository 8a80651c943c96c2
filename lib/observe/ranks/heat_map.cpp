#include "lib/observe/ranks/heat_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>

#include "io/base/json.h"
#include "io/base/median.h"
#include "io/ranks/ranks_file.h"
#include "lib/observe/ranks/stragglers.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWaitsName = "waits";
constexpr const char* kRate = "rate";
constexpr const char* kLaunchSkew = "launch_skew";
constexpr int kLabel = 8;         // columns of "pp12-13 "
constexpr int kMedian = 10;       // ... of a stage's median
constexpr int kFrame = 6;         // lines in addition to those of ranks: head, legend, end
constexpr int kHeads = 2;         // ... above the numbers of ranks
constexpr size_t kMostNamed = 4;  // outliers that are listed

bool is_work_quantity(RankQuantity quantity) {
  return quantity == RankQuantity::kForward || quantity == RankQuantity::kBackward ||
         quantity == RankQuantity::kOptimizer || quantity == RankQuantity::kCompute;
}

std::vector<double> waits_of(const RankWindow& window) {
  std::vector<double> sums;
  for (const RankTimes& rank : window.ranks) {
    float sum = 0;
    for (const RankQuantity wait : kExposedWaits) sum += rank[wait];
    sums.push_back(sum);
  }
  return sums;
}

std::vector<double> rates_of(const RankMesh& mesh, const RankWindow& window) {
  std::vector<double> rates;
  for (size_t rank = 0; rank < window.ranks.size(); ++rank) {
    const auto stage = static_cast<size_t>(mesh.stage_of(static_cast<int>(rank)));
    const double seconds = window.ranks[rank][RankQuantity::kCompute];
    rates.push_back(seconds > 0 && stage < mesh.stage_flops.size() ? mesh.stage_flops[stage] / seconds / 1e12 : 0);
  }
  return rates;
}

std::vector<double> skews_of(const RankMesh& mesh, const RankWindow& window) {
  std::vector<double> skews(window.ranks.size());
  const auto launch = [&](int rank) -> double {
    return window.ranks[static_cast<size_t>(rank)][RankQuantity::kLaunch];
  };
  for (const std::vector<int>& role : roles_of(mesh)) {
    double first = launch(role.front());
    for (const int rank : role) first = std::min(first, launch(rank));
    for (const int rank : role) skews[static_cast<size_t>(rank)] = launch(rank) - first;
  }
  return skews;
}

void compare(const RankMesh& mesh, const RankWindow& window, Heat& heat) {
  heat.slower.resize(heat.values.size());
  const auto value = [&](int rank) { return heat.values[static_cast<size_t>(rank)]; };
  for (const std::vector<int>& role : roles_of(mesh)) {
    std::vector<double> values, steps;
    for (const int rank : role) {
      values.push_back(heat.is_rate ? -value(rank) : value(rank));
      steps.push_back(window.ranks[static_cast<size_t>(rank)][RankQuantity::kStep]);
    }
    const double middle = std::abs(lower_median(values)), step = median(steps);
    for (const int rank : role) {
      double& slower = heat.slower[static_cast<size_t>(rank)];
      if (heat.is_rate && value(rank) > 0)
        slower = middle / value(rank) - 1;
      else if (heat.is_work && middle > 0)
        slower = value(rank) / middle - 1;
      else if (!heat.is_work && step > 0)
        slower = (value(rank) - middle) / step;
    }
  }
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    std::vector<double> values;
    for (const int rank : mesh.ranks_of_stage(stage)) values.push_back(heat.values[static_cast<size_t>(rank)]);
    heat.medians.push_back(lower_median(std::move(values)));
  }
}

}  // namespace

std::vector<std::string> heat_quantities() {
  std::vector<std::string> names;
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table) names.emplace_back(name);
  names.insert(names.end(), {kWaitsName, kRate, kLaunchSkew});
  return names;
}

Result<Heat> heat_of(const RankMesh& mesh, const RankWindow& window, std::string_view quantity) {
  Heat heat{.quantity = std::string(quantity), .values = {}, .slower = {}, .medians = {}};
  if (quantity == kWaitsName) {
    heat.values = waits_of(window);
  } else if (quantity == kRate) {
    heat.is_rate = heat.is_work = true;
    heat.values = rates_of(mesh, window);
  } else if (quantity == kLaunchSkew) {
    heat.values = skews_of(mesh, window);
  } else if (const auto known = enum_from_name<RankQuantity>(quantity)) {
    heat.is_work = is_work_quantity(*known);
    for (const RankTimes& rank : window.ranks) heat.values.push_back(rank[*known]);
  } else {
    return usage_error("--heat: unknown quantity {}; the known ones are {}", quantity,
                       fmt::join(heat_quantities(), ", "));
  }
  compare(mesh, window, heat);
  return heat;
}

Result<NewestWindow> newest_window(const std::string& run_dir) {
  const std::string path = fmt::format("{}/{}", run_dir, kRanksFile);
  const auto reader = RanksReader::open(path);
  std::error_code problem;
  if (!reader && !std::filesystem::is_directory(run_dir, problem))
    return usage_error("{}: no such folder; give the folder of a run (run.dir)", run_dir);
  if (!reader && reader.error().os_error == ENOENT)
    return file_error(
        "{}: no per-rank times yet: the run has not finished its first window (metrics.ranks_every steps), or "
        "metrics.ranks_every is 0",
        path);
  if (!reader) return reader.error();
  for (int attempt = reader.value().num_attempts() - 1; attempt >= 0; --attempt) {
    auto last = reader.value().last(attempt, 1);
    if (!last) return last.error();
    if (!last.value().empty()) return NewestWindow{reader.value().mesh(attempt), std::move(last.value().front())};
  }
  return file_error("{}: no window of metrics.ranks_every steps is complete yet", path);
}

std::vector<int> standing_out(const Heat& heat) {
  std::vector<int> ranks;
  if (!heat.is_work) return ranks;
  for (size_t rank = 0; rank < heat.slower.size(); ++rank)
    if (heat.slower[rank] >= kStandsOut) ranks.push_back(static_cast<int>(rank));
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return heat.slower[static_cast<size_t>(a)] > heat.slower[static_cast<size_t>(b)];
  });
  return ranks;
}

namespace {

// Formats milliseconds or TFLOP/s with four significant digits.
std::string number(const Heat& heat, double value) {
  const double shown = heat.is_rate ? value : 1e3 * value;
  if (shown == 0) return "0";
  const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(std::abs(shown)))), 0, 3);
  return fmt::format("{:.{}f}", shown, digits);
}

const char* unit(const Heat& heat) { return heat.is_rate ? "TFLOP/s" : "ms"; }

// From faster (blue) over the role's median (grey) to slower (orange, red). The shades are distinguishable for
// colour-blind readers, and by brightness in print. [foreground, background] of the 256 colours.
struct Shade {
  double below;  // applies if the rank is slower by less than this share
  int foreground, background;
};
constexpr Shade kShades[] = {{-0.1, 231, 25}, {-0.05, 16, 68}, {-0.02, 16, 110}, {0.02, 16, 252},
                             {0.05, 16, 223}, {0.1, 16, 215},  {0.2, 16, 208},   {1e300, 231, 124}};

const Shade& shade_of(double slower) {
  return *std::find_if(std::begin(kShades), std::end(kShades) - 1, [&](const Shade& s) { return slower < s.below; });
}

std::string coloured(const std::string& text, double slower, const HeatScreen& screen) {
  if (!screen.colours) return text;
  const Shade& shade = shade_of(slower);
  return fmt::format("\033[38;5;{};48;5;{}m{}\033[0m", shade.foreground, shade.background, text);
}

// Returns the character of a cell: percent slower.
char mark_of(double slower) {
  if (slower >= kStandsOut) return '#';
  if (slower >= 0.02) return static_cast<char>('0' + static_cast<int>(100 * slower));
  return slower <= -0.02 ? '-' : '.';
}

// How ranks share cells, and cells share lines.
struct Folding {
  int stages = 1;  // stages per row
  int ranks = 1;   // ranks of a stage per cell: within a tp group, or whole groups
  int cells = 1;   // cells per row
  int per_line = 1;
  int lines_per_row(int of) const { return (of + per_line - 1) / per_line; }
};

Folding folding_of(const RankMesh& mesh, const HeatScreen& screen, int lines) {
  const int width = std::max(8, screen.columns - kLabel - kMedian - 1), in_stage = mesh.in_stage();
  Folding folding;
  lines = std::max(1, lines);
  folding.stages = (mesh.stages() + lines - 1) / lines;
  const int rows = (mesh.stages() + folding.stages - 1) / folding.stages;
  const auto fits = [&](int ranks) {
    folding.ranks = ranks;
    folding.cells = (in_stage + ranks - 1) / ranks;
    // Put whole tp groups in a line if one fits.
    const int group = std::max(1, mesh.tp() / ranks);
    const int unit = group <= width ? group : 1;
    folding.per_line = width / unit * unit;
    // Divide the cells evenly among the lines of a stage.
    const int in_line =
        (folding.cells + folding.lines_per_row(folding.cells) - 1) / folding.lines_per_row(folding.cells);
    folding.per_line = std::min(folding.per_line, (in_line + unit - 1) / unit * unit);
    return rows * folding.lines_per_row(folding.cells) <= lines;
  };
  // Try divisors of a tp group, then whole groups.
  for (int ranks = 1; ranks <= mesh.tp(); ++ranks)
    if (mesh.tp() % ranks == 0 && fits(ranks)) return folding;
  for (int groups = 2; groups <= in_stage / mesh.tp(); ++groups)
    if (fits(groups * mesh.tp())) return folding;
  return folding;
}

std::string stages_text(int first, int last) {
  return first == last ? fmt::format("pp{}", first) : fmt::format("pp{}-{}", first, last);
}

// Returns the position of a rank's tp group in its stage: "dp1".
std::string column_name(const RankMesh& mesh, int world_rank) {
  std::string name;
  for (auto axis = mesh.grid.axes.rbegin(); axis != mesh.grid.axes.rend(); ++axis)
    if (axis->name != "pp" && axis->name != "tp")
      name += fmt::format("{}{}{}", name.empty() ? "" : " ", axis->name, mesh.grid.rank_on(axis->name, world_rank));
  return name;
}

// Returns, for example, "pp 2 x dp 1 x tp 4".
std::string sizes_of(const RankMesh& mesh) {
  std::string text;
  for (auto axis = mesh.grid.axes.rbegin(); axis != mesh.grid.axes.rend(); ++axis)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis->name, axis->size);
  return text;
}

std::string median_text(const Heat& heat, int first, int last) {
  std::vector<double> medians(heat.medians.begin() + first, heat.medians.begin() + last + 1);
  return number(heat, lower_median(std::move(medians)));
}

// Draws one character per cell, for the slowest of its ranks.
std::string map_of_cells(const RankMesh& mesh, const Heat& heat, const HeatScreen& screen, const Folding& folding) {
  std::string text;
  const int in_stage = mesh.in_stage();
  for (int first = 0; first < mesh.stages(); first += folding.stages) {
    const int last = std::min(mesh.stages(), first + folding.stages) - 1;
    for (int begin = 0; begin < folding.cells; begin += folding.per_line) {
      const int end = std::min(folding.cells, begin + folding.per_line);
      text += fmt::format("{:<{}}", begin == 0 ? stages_text(first, last) : "", kLabel);
      for (int cell = begin; cell < end; ++cell) {
        double worst = -1e300;
        for (int stage = first; stage <= last; ++stage) {
          const std::vector<int> ranks = mesh.ranks_of_stage(stage);
          for (int i = cell * folding.ranks; i < std::min(in_stage, (cell + 1) * folding.ranks); ++i)
            worst = std::max(worst, heat.slower[static_cast<size_t>(ranks[static_cast<size_t>(i)])]);
        }
        text += coloured(std::string(1, mark_of(worst)), worst, screen);
      }
      if (begin == 0)
        text += std::string(static_cast<size_t>(folding.per_line - (end - begin)), ' ') +
                fmt::format("{:>{}}", median_text(heat, first, last), kMedian);
      text += '\n';
    }
  }
  return text;
}

// Prints one number per rank and one line per stage; returns "" if that does not fit.
std::string map_of_numbers(const RankMesh& mesh, const Heat& heat, const HeatScreen& screen, int lines) {
  size_t width = 5;
  for (const double value : heat.values) width = std::max(width, number(heat, value).size() + 1);
  const int in_stage = mesh.in_stage();
  const int columns = kLabel + kMedian + in_stage / mesh.tp() + in_stage * static_cast<int>(width + 1);
  if (columns > screen.columns || mesh.stages() + kHeads > lines) return "";
  const auto tp = static_cast<size_t>(mesh.tp());
  std::string dps = std::string(kLabel, ' '), tps = dps;
  for (const int rank : mesh.grid.group_without(0, {"pp", "tp"})) {
    dps += fmt::format(" {:<{}}", fmt::format(" {}", column_name(mesh, rank)), tp * (width + 1));
    tps += ' ';
    for (size_t i = 0; i < tp; ++i) tps += fmt::format("{:>{}} ", fmt::format("tp{}", i), width);
  }
  std::string text = dps + "\n" + tps + fmt::format("{:>{}}\n", "median", kMedian - 1);
  for (int stage = 0; stage < mesh.stages(); ++stage) {
    text += fmt::format("{:<{}}", stages_text(stage, stage), kLabel);
    for (const int world_rank : mesh.ranks_of_stage(stage)) {
      const auto rank = static_cast<size_t>(world_rank);
      const bool out = heat.is_work && heat.slower[rank] >= kStandsOut;
      if (mesh.grid.rank_on("tp", world_rank) == 0) text += ' ';
      text += coloured(fmt::format("{:>{}}{}", number(heat, heat.values[rank]), width, out ? '*' : ' '),
                       heat.slower[rank], screen);
    }
    text += fmt::format("{:>{}}\n", median_text(heat, stage, stage), kMedian - 1);
  }
  return text;
}

std::string legend_of(const Heat& heat, const HeatScreen& screen, bool numbers, const Folding& folding) {
  const char* const of =
      heat.is_work ? "per cent slower than its peers' median" : "per cent of a step above its peers' median";
  std::string text;
  if (screen.colours) {
    constexpr std::pair<double, const char*> kSamples[] = {{-0.2, " -10 "}, {-0.07, " -5 "}, {-0.03, " -2 "},
                                                           {0, " 0 "},      {0.03, " +2 "},  {0.07, " +5 "},
                                                           {0.15, " +10 "}, {0.3, " +20 "}};
    for (const auto& [slower, sample] : kSamples) text += coloured(sample, slower, screen);
    text += fmt::format(" {}\n", of);
  }
  if (numbers) {
    if (heat.is_work) text += "*: at least 10 % slower than its peers' median\n";
    return text;
  }
  std::string cell =
      folding.ranks == 1 ? "one character per rank" : fmt::format("one character per {} ranks", folding.ranks);
  if (folding.stages > 1) cell += fmt::format(" of {} stages", folding.stages);
  if (folding.ranks * folding.stages > 1) cell += ", showing the slowest one";
  return text + fmt::format("{}\n2-9: {}; #: 10 or more; -: faster\n", cell, screen.colours ? "per cent" : of);
}

// Uses at most `lines` lines, which is at least two.
std::string outliers_of(const RankMesh& mesh, const Heat& heat, size_t lines) {
  const std::vector<int> out = standing_out(heat);
  const size_t named = out.size() <= std::min(lines, kMostNamed) ? out.size() : std::min(lines - 1, kMostNamed);
  std::string text;
  for (size_t i = 0; i < named; ++i) {
    const auto rank = static_cast<size_t>(out[i]);
    text += fmt::format("{}: {} {}, {:.0f} % slower\n", to_string_place(mesh, out[i]), number(heat, heat.values[rank]),
                        unit(heat), 100 * heat.slower[rank]);
  }
  if (out.size() > named) text += fmt::format("and {} more\n", out.size() - named);
  if (out.empty() && heat.is_work) text += "no rank is slower than its peers by 10 % or more\n";
  return text;
}

}  // namespace

std::string heat_map_text(const RankMesh& mesh, const RankWindow& window, const Heat& heat, const HeatScreen& screen) {
  std::string outliers = outliers_of(mesh, heat, kMostNamed + 1);
  const auto lines_beside = [&](const std::string& named) {
    return screen.lines - kFrame - static_cast<int>(std::count(named.begin(), named.end(), '\n'));
  };
  std::string numbers = map_of_numbers(mesh, heat, screen, lines_beside(outliers));
  if (numbers.empty()) {  // numbers of all ranks say more than the names of some
    std::string fewer = outliers_of(mesh, heat, 2);
    numbers = map_of_numbers(mesh, heat, screen, lines_beside(fewer));
    if (!numbers.empty()) outliers = std::move(fewer);
  }
  const int lines = lines_beside(outliers);
  std::string text = fmt::format("{}, {}{}, steps {}-{}; {}\n", heat.quantity, unit(heat),
                                 heat.is_rate ? "" : " a step", window.first_step, window.last_step, sizes_of(mesh));
  const Folding folding = folding_of(mesh, screen, lines);
  text += numbers.empty() ? fmt::format("{:>{}}\n", "median", kLabel + folding.per_line + kMedian) : numbers;
  if (numbers.empty()) text += map_of_cells(mesh, heat, screen, folding);
  return text + "\n" + legend_of(heat, screen, !numbers.empty(), folding) + outliers;
}

std::string heat_map_json(const RankMesh& mesh, const RankWindow& window, const Heat& heat) {
  const auto scaled = [&](double value) { return heat.is_rate ? value : 1e3 * value; };
  const auto by_place = [&](const std::vector<double>& values, double scale) {
    Json nested = Json::array();  // an array of numbers, nested once more for each slower axis
    for (const double value : values) nested.push_back(std::round(scale * value * 1e6) / 1e6);
    for (size_t axis = 0; axis + 1 < mesh.grid.axes.size(); ++axis) {
      const auto size = static_cast<size_t>(mesh.grid.axes[axis].size);
      Json wider = Json::array();
      for (size_t i = 0; i < nested.size(); ++i) {
        if (i % size == 0) wider.push_back(Json::array());
        wider.back().push_back(std::move(nested[i]));
      }
      nested = std::move(wider);
    }
    return nested;
  };
  const auto by_axis = [&](const auto& number_of) {
    Json numbers;
    for (auto axis = mesh.grid.axes.rbegin(); axis != mesh.grid.axes.rend(); ++axis)
      numbers[axis->name] = number_of(*axis);
    return numbers;
  };
  Json out = Json::array(), medians = Json::array();
  for (const int rank : standing_out(heat)) {
    const auto index = static_cast<size_t>(rank);
    const RankMesh::Place place = index < mesh.places.size() ? mesh.places[index] : RankMesh::Place{};
    out.push_back({{"rank", rank},
                   {"place", by_axis([&](const GridAxis& axis) { return mesh.grid.rank_on(axis.name, rank); })},
                   {"host", place.host},
                   {"gpu", place.gpu.empty() ? Json() : Json(place.gpu)},
                   {"value", scaled(heat.values[index])},
                   {"slower", heat.slower[index]}});
  }
  for (const double value : heat.medians) medians.push_back(scaled(value));
  const Json object = {{"quantity", heat.quantity},
                       {"unit", unit(heat)},
                       {"attempt", mesh.attempt},
                       {"first_step", window.first_step},
                       {"last_step", window.last_step},
                       {"mesh", by_axis([](const GridAxis& axis) { return axis.size; })},
                       {"values", by_place(heat.values, heat.is_rate ? 1 : 1e3)},
                       {"slower", by_place(heat.slower, 1)},
                       {"stage_medians", medians},
                       {"standing_out", out}};
  return object.dump() + "\n";
}

}  // namespace tri
