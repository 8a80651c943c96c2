#include "lib/tune/tuning_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::pair<Pass, const char*> kPasses[] = {{Pass::kForward, "forward"}, {Pass::kBackward, "backward"}};

std::string path_in(const std::string& dir, const char* name) { return dir + "/" + name; }

GemmChoices& of_library(const std::string& library, std::vector<GemmChoices>& all) {
  const auto at = std::ranges::lower_bound(all, library, {}, &GemmChoices::library);
  if (at != all.end() && at->library == library) return *at;
  return *all.insert(at, {.library = library});
}

Json to_json(const OverlapSplits& splits) {
  Json object;
  for (const auto& [pass, name] : kPasses)
    for (const LinearPlace linear : kLinearPlaces) {
      const OverlapSplit split = splits.of(linear, pass);
      object[name].push_back({{"splits", split.num_splits}, {"direct", split.direct}});
    }
  return object;
}

// Thrown and caught in this file. The text holds the place and the problem.
struct Damaged {
  std::string text;
};

// Returns `value` as an object that has no fields other than `names`.
const Json& object_of(const Json& value, const std::string& place, const std::set<std::string>& names) {
  if (!value.is_object()) throw Damaged{place + " is not an object"};
  for (const auto& [name, field] : value.items())
    if (!names.contains(name)) throw Damaged{fmt::format("{}: the field '{}' is unknown", place, name)};
  for (const std::string& name : names)
    if (!value.contains(name)) throw Damaged{fmt::format("{}: the field '{}' is missing", place, name)};
  return value;
}

const Json& map_of(const Json& value, const std::string& place) {
  if (!value.is_object()) throw Damaged{place + " is not an object"};
  return value;
}

GemmChoice choice_of(const std::string& shape, const Json& value) {
  object_of(value, "GEMM " + shape, {"form", "algorithm", "microseconds", "first_microseconds"});
  return {.shape = shape,
          .form = value["form"].get<std::string>(),
          .algorithm = value["algorithm"].get<std::string>(),
          .microseconds = value["microseconds"].get<double>(),
          .first_microseconds = value["first_microseconds"].get<double>()};
}

OverlapSplits splits_of(const std::string& shape, const Json& value) {
  const std::string place = "overlap_splits of " + shape;
  object_of(value, place, {"forward", "backward"});
  OverlapSplits splits;
  for (const auto& [pass, name] : kPasses) {
    const Json& list = value[name];
    if (!list.is_array() || list.size() != std::size(kLinearPlaces))
      throw Damaged{fmt::format("{}: {} is not a list of {} numbers of splits", place, name, std::size(kLinearPlaces))};
    for (size_t i = 0; i < std::size(kLinearPlaces); ++i) {
      object_of(list[i], place, {"splits", "direct"});
      const OverlapSplit split{.num_splits = list[i]["splits"].get<int>(), .direct = list[i]["direct"].get<bool>()};
      if (split.num_splits < 0)
        throw Damaged{fmt::format("{}: {} splits; expected a number >= 0", place, split.num_splits)};
      splits.of(kLinearPlaces[i], pass) = split;
    }
  }
  return splits;
}

// Reads gemm_algorithms.txt of earlier versions: a line "# LIBRARY", then "SHAPE FORM ALGORITHM MICROSECONDS
// MICROSECONDS". Skips choices of an unknown form, as those versions did.
constexpr std::array<std::string_view, 4> kOldForms = {"plain", "epilogue", "fused", "fast"};
void take_old_gemms(const std::string& text, Tuning& tuning) {
  std::istringstream lines(text);
  GemmChoices choices;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) {
      add_choices(choices, tuning.gemms);
      choices = {.library = line.substr(2)};
      continue;
    }
    std::istringstream words(line);
    GemmChoice choice;
    if (words >> choice.shape >> choice.form >> choice.algorithm >> choice.microseconds >> choice.first_microseconds &&
        std::ranges::count(kOldForms, choice.form) > 0)
      choices.choices.push_back(std::move(choice));
  }
  add_choices(choices, tuning.gemms);
}

// Reads a line of overlap_splits.txt of earlier versions: "SHAPE 1 2 1 2d 1 2 1 2", eight numbers of splits, with "d"
// behind direct ones. Returns nullopt for a line that was cut short.
std::optional<OverlapSplits> old_splits(std::istringstream& words) {
  OverlapSplits splits;
  for (const auto& [pass, name] : kPasses)
    for (const LinearPlace linear : kLinearPlaces) {
      std::string word;
      words >> word;
      OverlapSplit split;
      const char* const last = word.data() + word.size();
      const auto [end, problem] = std::from_chars(word.data(), last, split.num_splits);
      split.direct = std::string_view(end, static_cast<size_t>(last - end)) == "d";
      if (problem != std::errc() || (end != last && !split.direct) || split.num_splits < 0) return std::nullopt;
      splits.of(linear, pass) = split;
    }
  return splits;
}

void take_old_splits(const std::string& text, Tuning& tuning) {
  const std::string whole = text.substr(0, text.rfind('\n') + 1);
  std::istringstream lines(whole);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string shape;
    words >> shape;
    if (const auto splits = old_splits(words)) tuning.splits[shape] = *splits;
  }
}

// Returns the text of a file, or nullopt if there is none.
Result<std::optional<std::string>> stored_text(const std::string& path, const Retry& retry) {
  auto text = retried(retry, [&] { return read_text(path); });
  if (text) return std::optional(std::move(text).value());
  if (text.error().os_error == ENOENT) return std::optional<std::string>();
  Error error = text.error();
  if (is_transient(error.os_error)) error.code = ExitCode::kDrained;
  return error;
}

}  // namespace

void add_choices(const GemmChoices& choices, std::vector<GemmChoices>& all) {
  if (choices.library.empty()) return;
  std::vector<GemmChoice>& known = of_library(choices.library, all).choices;
  for (const GemmChoice& choice : choices.choices) {
    const auto at = std::ranges::lower_bound(known, choice.shape, {}, &GemmChoice::shape);
    if (at == known.end() || at->shape != choice.shape) known.insert(at, choice);
  }
}

std::string to_json(const Tuning& tuning) {
  Json gemms = Json::object(), splits = Json::object();
  for (const GemmChoices& choices : tuning.gemms) {
    Json& of_library = gemms[choices.library] = Json::object();
    for (const GemmChoice& choice : choices.choices)
      of_library[choice.shape] = {{"form", choice.form},
                                  {"algorithm", choice.algorithm},
                                  {"microseconds", choice.microseconds},
                                  {"first_microseconds", choice.first_microseconds}};
  }
  for (const auto& [shape, of_shape] : tuning.splits) splits[shape] = to_json(of_shape);
  const Json all = {{"version", kVersion}, {"gemms", gemms}, {"overlap_splits", splits}};
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Tuning> tuning_from(std::string_view text, const std::string& path) {
  const auto damaged = [&](const std::string& what) {
    return file_error(
        "{}: {}; restore the file, or move it away to autotune again, after which a run's results may differ in their "
        "last bits",
        path, what);
  };
  try {
    const Json all = parse_json<Json>(text);
    if (!all.is_object() || !all.contains("version")) return damaged("the version is missing");
    if (all["version"] != kVersion)
      return damaged(fmt::format("the version is {}, expected {}", all["version"].dump(), kVersion));
    object_of(all, "the file", {"version", "gemms", "overlap_splits"});
    Tuning tuning;
    for (const auto& [library, shapes] : map_of(all["gemms"], "gemms").items()) {
      GemmChoices choices{.library = library};
      for (const auto& [shape, choice] : map_of(shapes, "gemms of " + library).items())
        choices.choices.push_back(choice_of(shape, choice));
      add_choices(choices, tuning.gemms);
    }
    for (const auto& [shape, splits] : map_of(all["overlap_splits"], "overlap_splits").items())
      tuning.splits[shape] = splits_of(shape, splits);
    return tuning;
  } catch (const Damaged& part) {
    return damaged(part.text);
  } catch (const Json::exception& problem) {
    return damaged(problem.what());
  }
}

Result<Tuning> read_tuning(const std::string& dir, const Retry& retry) {
  const std::string path = path_in(dir, "tuning.json");
  const auto text = stored_text(path, retry);
  if (!text) return text.error();
  if (text.value()) return tuning_from(*text.value(), path);
  Tuning tuning;
  const auto gemms = stored_text(path_in(dir, "gemm_algorithms.txt"), retry);
  if (!gemms) return gemms.error();
  take_old_gemms(gemms.value().value_or(""), tuning);
  const auto splits = stored_text(path_in(dir, "overlap_splits.txt"), retry);
  if (!splits) return splits.error();
  take_old_splits(splits.value().value_or(""), tuning);
  return tuning;
}

void write_tuning(const std::string& dir, const Tuning& tuning) {
  std::error_code ignored;  // the write reports errors
  if (!std::filesystem::is_directory(dir, ignored)) return;
  if (const auto written = write_file(path_in(dir, "tuning.json"), to_json(tuning)); !written)
    log_warn("{}: the next start autotunes again", written.error().message);
}

}  // namespace tri
