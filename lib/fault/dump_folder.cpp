#include "lib/fault/dump_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "io/base/clock.h"
#include "io/base/date.h"
#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/parallel.h"
#include "io/flight_recorder/record_json.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRecordBegin = "rank_", kRecordEnd = ".json";

std::string hang_folder(const std::string& run_dir) { return run_dir + "/hang"; }

std::string record_path(const std::string& folder, int world_rank) {
  return fmt::format("{}/{}{:05}{}", folder, kRecordBegin, world_rank, kRecordEnd);
}

// Returns the time in UTC: "20261122T155959".
std::string name_of_now() { return utc_date(wall_seconds(), "%Y%m%dT%H%M%S"); }

// Whether the text has the form of name_of_now().
bool is_date(std::string_view text) {
  constexpr std::string_view kForm = "00000000T000000";
  return text.size() == kForm.size() && std::equal(text.begin(), text.end(), kForm.begin(), [](char c, char form) {
           return form == 'T' ? c == 'T' : c >= '0' && c <= '9';
         });
}

std::optional<int> number_in(std::string_view text, std::string_view begin, std::string_view end) {
  if (!text.starts_with(begin) || !text.ends_with(end) || text.size() < begin.size() + end.size()) return std::nullopt;
  const std::string_view digits = text.substr(begin.size(), text.size() - begin.size() - end.size());
  int number = 0;
  const auto [stop, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (problem != std::errc() || stop != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Json json_of(const HangTrigger& trigger) {
  return {{"rank", trigger.world_rank},
          {"phase", enum_name(trigger.phase)},
          {"writer", trigger.writer},
          {"seconds", trigger.seconds}};
}

// Returns the whole file, or "" if it cannot be read.
std::string text_of_file(const std::string& path) {
  const auto file = InputFile::open(path);
  if (!file) return "";
  std::string text(static_cast<size_t>(file.value().bytes()), '\0');
  return file.value().read(text.data(), file.value().bytes(), 0) ? text : "";
}

// Readers see the whole file or none. It is not synced, because a sync may take longer than the job has left.
Result<void> publish_file(const std::string& path, std::string_view text) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  file.value().write(text.data(), text.size());
  return file.value().publish();
}

HangTrigger read_trigger(const std::string& folder) {
  HangTrigger trigger;
  const Json json = try_parse_json<Json>(text_of_file(folder + "/trigger.json"));
  if (!json.is_object()) return trigger;
  trigger.world_rank = json.value("rank", -1);
  trigger.phase = enum_from_name<RunPhase>(json.value("phase", "")).value_or(RunPhase::kStep);
  trigger.writer = json.value("writer", false);
  trigger.seconds = json.value("seconds", 0.0);
  return trigger;
}

// Returns the folder that the link points to, or none if there is no link.
std::optional<DumpFolder> linked(const std::string& hang, const std::string& link) {
  char target[NAME_MAX + 1] = {};
  const ssize_t length = ::readlink(link.c_str(), target, NAME_MAX);
  if (length <= 0) return std::nullopt;
  const std::string path = fmt::format("{}/{}", hang, std::string_view(target, static_cast<size_t>(length)));
  return DumpFolder{.path = path, .trigger = read_trigger(path), .opened = false};
}

// Removes all dumps except the newest ones, and the links to them. Errors are ignored.
void remove_old_dumps(const std::string& run_dir) {
  const std::vector<std::string> dumps = list_dumps(run_dir);
  if (dumps.size() <= kKeptDumps) return;
  std::error_code ignored;
  for (const std::string& path : std::span(dumps).first(dumps.size() - kKeptDumps))
    std::filesystem::remove_all(path, ignored);
  const std::string hang = hang_folder(run_dir);
  const auto names = list_folder(hang);
  if (!names) return;
  struct stat info {};
  for (const std::string& name : names.value())
    if (const std::string path = fmt::format("{}/{}", hang, name); ::stat(path.c_str(), &info) != 0 && errno == ENOENT)
      ::unlink(path.c_str());
}

bool make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0777) == 0; }

// Creates a folder named after the current second; a number distinguishes dumps of the same second. Returns the name,
// or "" with errno set.
std::string make_dated_folder(const std::string& hang) {
  constexpr int kTries = 100;
  std::string now = name_of_now();
  int next = 1;  // above all existing numbers, since an earlier folder may have been removed
  const auto names = list_folder(hang);
  // Dumps are sorted by name, so a new name must not sort before the last one even if the clock was set back.
  if (names)
    for (const std::string& name : names.value())
      if (is_date(name.substr(0, name.find('-')))) now = std::max(now, name.substr(0, name.find('-')));
  if (names)
    for (const std::string& name : names.value())
      next = std::max(next, name == now ? 2 : number_in(name, now + "-", "").value_or(0) + 1);
  for (int i = next; i < next + kTries; ++i) {
    const std::string name = i == 1 ? now : fmt::format("{}-{}", now, i);
    if (make_folder(fmt::format("{}/{}", hang, name))) return name;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

Result<DumpFolder> join_dump(const std::string& run_dir, const std::string& attempt, int number,
                             const HangTrigger& trigger) {
  const std::string hang = hang_folder(run_dir), link = fmt::format("{}/{}.{}", hang, attempt, number);
  if (auto there = linked(hang, link)) return *there;
  if (!make_folder(hang) && errno != EEXIST) {
    if (errno == ENOENT) return file_error("{}: no such folder (the run had not created it yet)", run_dir);
    return system_error(errno, "{}: cannot create this folder for dumps", hang);
  }
  const std::string name = make_dated_folder(hang), path = fmt::format("{}/{}", hang, name);
  if (name.empty()) return system_error(errno, "{}: cannot create a folder for a dump", hang);
  const auto written = publish_file(path + "/trigger.json", json_of(trigger).dump() + "\n");
  if (written && ::symlink(name.c_str(), link.c_str()) == 0) {
    remove_old_dumps(run_dir);
    return DumpFolder{path, trigger, true};
  }
  const int problem = errno;
  ::unlink((path + "/trigger.json").c_str());
  ::rmdir(path.c_str());
  if (!written) return written.error();
  if (problem == EEXIST)
    if (auto there = linked(hang, link)) return *there;  // another node created it first
  return system_error(problem, "{}: cannot create this link to the dump", link);
}

// Lists both folders: a listing makes a network file system query its server, whereas a client may cache for a while
// that a name does not exist.
int newest_dump(const std::string& run_dir, const std::string& attempt) {
  int newest = 0;
  const auto top = list_folder(run_dir);
  if (!top || std::find(top.value().begin(), top.value().end(), "hang") == top.value().end()) return 0;
  const auto names = list_folder(hang_folder(run_dir));
  if (!names) return 0;
  for (const std::string& name : names.value())
    newest = std::max(newest, number_in(name, attempt + ".", "").value_or(0));
  return newest;
}

std::vector<std::string> list_dumps(const std::string& run_dir) {
  std::vector<std::string> folders;
  const auto names = list_folder(hang_folder(run_dir));
  if (!names) return folders;
  for (const std::string& name : names.value()) {
    const std::string path = fmt::format("{}/{}", hang_folder(run_dir), name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) folders.push_back(path);
  }
  // Dumps of the same second are sorted by number: "...-2" comes before "...-10".
  const auto order = [](const std::string& path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    return std::tuple(name.substr(0, name.find('-')), name.size(), name);
  };
  std::sort(folders.begin(), folders.end(),
            [&](const std::string& a, const std::string& b) { return order(a) < order(b); });
  return folders;
}

Result<void> write_record(const std::string& folder, const RankRecord& record) {
  return publish_file(record_path(folder, record.world_rank), to_json(record) + "\n");
}

std::vector<int> recorded_ranks(const std::string& folder) {
  std::vector<int> ranks;
  const auto names = list_folder(folder);
  if (!names) return ranks;
  for (const std::string& name : names.value())
    if (const auto rank = number_in(name, kRecordBegin, kRecordEnd)) ranks.push_back(*rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<RankRecord> read_records(const std::string& folder, std::span<const int> world_ranks) {
  constexpr int64_t kGrain = 16;
  std::vector<std::optional<RankRecord>> read(world_ranks.size());
  parallel_ranges(static_cast<int64_t>(read.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string path = record_path(folder, world_ranks[static_cast<size_t>(i)]);
      if (auto record = record_from_json(text_of_file(path), path))
        read[static_cast<size_t>(i)] = std::move(record).value();
    }
  });
  std::vector<RankRecord> records;
  for (auto& record : read)
    if (record) records.push_back(std::move(*record));
  return records;
}

std::string report_json(std::span<const RankRecord> records, const HangTrigger& trigger, const HangVerdict& verdict) {
  Json suspects = Json::array();
  for (const HangSuspect& suspect : verdict.suspects) {
    const auto of = std::find_if(records.begin(), records.end(),
                                 [&](const RankRecord& r) { return r.world_rank == suspect.world_rank; });
    const std::string host = of == records.end() ? "" : of->host;
    suspects.push_back({{"rank", suspect.world_rank},
                        {"host", host},
                        {"gpu", of == records.end() ? "" : of->gpu},
                        {"kind", enum_name(suspect.kind)},
                        {"text", suspect.text}});
  }
  const Json json = {{"schema", 1},
                     {"headline", verdict.headline},
                     {"kind", enum_name(verdict.kind)},
                     {"culprits", suspects},
                     {"hosts", suspect_hosts(records, verdict)},
                     {"waiting", verdict.num_waiting},
                     {"trigger", json_of(trigger)},
                     {"records", records.size()},
                     {"ranks", records.empty() ? 0 : records[0].world_size},
                     {"attempt", records.empty() ? "" : records[0].attempt}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<bool> write_report(const std::string& folder, std::span<const RankRecord> records, const HangTrigger& trigger,
                          const HangVerdict& verdict) {
  const std::string path = folder + "/report.txt";
  const std::string mine = fmt::format("{}.{}", path, records.empty() ? 0 : records[0].world_rank);
  if (auto written = write_file(mine, hang_report(records, trigger, verdict)); !written) return written.error();
  const bool first = ::link(mine.c_str(), path.c_str()) == 0;  // unlike rename(), link() fails if the file exists
  const int problem = errno;
  ::unlink(mine.c_str());
  if (!first) {
    if (problem == EEXIST) return false;
    return system_error(problem, "{}: cannot create the report", path);
  }
  if (auto written = write_file(folder + "/report.json", report_json(records, trigger, verdict)); !written)
    return written.error();
  return true;
}

std::optional<std::string> read_headline(const std::string& folder) {
  const Json json = try_parse_json<Json>(text_of_file(folder + "/report.json"));
  if (!json.is_object()) return std::nullopt;
  return json.value("headline", "");
}

}  // namespace tri
