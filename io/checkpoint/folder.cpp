#include "io/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <tuple>

#include "io/base/clock.h"
#include "io/base/date.h"
#include "io/base/file.h"
#include "io/base/log.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

enum class Kind { kPublished, kOld, kUnfinished, kTrash };  // in order of preference
constexpr std::pair<Kind, std::string_view> kKinds[] = {
    {Kind::kOld, ".old."}, {Kind::kUnfinished, ".tmp."}, {Kind::kTrash, ".trash."}};

struct Name {
  int64_t step;
  Kind kind;
  std::string attempt;  // empty if published
};

std::string folder_name(int64_t step, Kind kind, const std::string& attempt) {
  for (const auto& [candidate, infix] : kKinds)
    if (candidate == kind) return fmt::format("{}{}{}", step_name(step), infix, attempt);
  return step_name(step);
}

std::optional<Name> parse_name(const std::string& text) {
  constexpr std::string_view prefix = "step_";
  if (text.rfind(prefix, 0) != 0) return std::nullopt;
  const size_t end = text.find_first_not_of("0123456789", prefix.size());
  const std::string digits = text.substr(prefix.size(), std::min(end, text.size()) - prefix.size());
  if (digits.empty() || digits.size() > 18) return std::nullopt;
  Name name{.step = std::stoll(digits), .kind = Kind::kPublished, .attempt = ""};
  for (const auto& [kind, infix] : kKinds)
    if (end != std::string::npos && text.compare(end, infix.size(), infix) == 0) {
      name.kind = kind;
      name.attempt = text.substr(end + infix.size());
    }
  // Accepts one spelling per step; otherwise "step_1" and "step_00000001" would be two checkpoints of one step.
  if (text != folder_name(name.step, name.kind, name.attempt)) return std::nullopt;
  return name;
}

// A missing folder has no names; a folder that cannot be listed is an error.
Result<std::vector<Name>> names_in(const std::string& dir, const Retry& retry) {
  auto listed = retried(retry, [&] { return list_folder(dir); });
  if (!listed && listed.error().os_error == ENOENT) return std::vector<Name>();
  if (!listed) return listed.error();
  std::vector<Name> names;
  for (const std::string& text : listed.value())
    if (auto name = parse_name(text)) names.push_back(std::move(*name));
  std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) {
    return std::tuple(-a.step, a.kind, a.attempt) < std::tuple(-b.step, b.kind, b.attempt);
  });
  return names;
}

std::string path_of(const std::string& dir, const Name& name) {
  return dir + "/" + folder_name(name.step, name.kind, name.attempt);
}

Result<bool> exists(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT) return false;
  return system_error(errno, "{}", path);
}

Result<void> rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return system_error(errno, "{}: renaming it to {}", from, to);
  return {};
}

Result<void> remove_folder(const std::string& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) return system_error(code.value(), "{}: removing it", path);
  return {};
}

Result<void> make_folders(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code) return system_error(code.value(), "{}: creating it", path);
  return {};
}

// Returns the folder's manifest if the folder is a checkpoint of this step.
Result<Manifest> usable(const std::string& folder, int64_t step, const Retry& retry = {}) {
  auto manifest = read_manifest(folder, retry);
  if (!manifest) return manifest;
  if (manifest.value().step != step)
    return file_error("{}: its manifest says step {}, expected {}", folder, manifest.value().step, step);
  if (auto there = check_files(folder, manifest.value(), retry); !there) return there.error();
  return manifest;
}

// Returns whether storage did not answer, so that its contents are unknown. A missing file is an answer.
bool unknown(const Result<Manifest>& fit) {
  return !fit && fit.error().os_error != 0 && fit.error().os_error != ENOENT;
}

// Hides the folder by one rename, then removes it.
Result<void> discard(const std::string& dir, const Name& name, const std::string& attempt) {
  const std::string trash = path_of(dir, {name.step, Kind::kTrash, attempt});
  if (auto removed = remove_folder(trash); !removed) return removed;
  if (auto renamed = rename_path(path_of(dir, name), trash); !renamed) return renamed;
  if (auto synced = sync_folder(dir); !synced) return synced;
  return remove_folder(trash);
}

// Swaps the names of two folders; returns false if the file system cannot.
Result<bool> swap_folders(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  return system_error(errno, "{}: swapping it with {}", a, b);
}

// Gives `folder` the name `target`, which is in use. A valid checkpoint of the step exists at every moment:
// list_checkpoints also considers .old. folders.
Result<void> replace(const std::string& dir, int64_t step, const std::string& attempt) {
  const std::string folder = attempt_folder(dir, step, attempt), target = dir + "/" + step_name(step);
  const auto swapped = swap_folders(folder, target);
  if (!swapped) return swapped.error();
  const Name old{step, swapped.value() ? Kind::kUnfinished : Kind::kOld, attempt};
  if (!swapped.value()) {
    if (auto removed = remove_folder(path_of(dir, old)); !removed) return removed;
    if (auto renamed = rename_path(target, path_of(dir, old)); !renamed) return renamed;
    if (auto renamed = rename_path(folder, target); !renamed) {
      ::rename(path_of(dir, old).c_str(), target.c_str());  // undoes the rename if possible
      return renamed;
    }
  }
  if (auto synced = sync_folder(dir); !synced) return synced;
  return discard(dir, old, attempt);
}

// Recovers from a kill between the two renames of a replacement: only the old checkpoint exists, so restores its name.
Result<void> take_back(const std::string& dir, const Name& old, const std::string& attempt) {
  const Name published{old.step, Kind::kPublished, ""};
  const auto taken = exists(path_of(dir, published));
  if (!taken) return taken.error();
  if (taken.value())
    if (auto gone = discard(dir, published, attempt); !gone) return gone;
  if (auto renamed = rename_path(path_of(dir, old), path_of(dir, published)); !renamed) return renamed;
  log_info("checkpoint {} was restored, since its replacement was interrupted", path_of(dir, published));
  return {};
}

// An earlier try renamed the attempt's folder and failed afterwards. The folders with the attempt's other names are the
// checkpoint that it replaced.
Result<void> complete_publication(const std::string& dir, int64_t step, const std::string& attempt) {
  if (auto synced = sync_folder(dir); !synced) return synced;
  for (const Kind kind : {Kind::kUnfinished, Kind::kOld, Kind::kTrash})
    if (auto removed = remove_folder(path_of(dir, {step, kind, attempt})); !removed) return removed;
  return write_file(dir + "/latest", step_name(step) + "\n", attempt);
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("step_{:08}", step); }

std::string attempt_folder(const std::string& dir, int64_t step, const std::string& attempt) {
  TRI_REQUIRE(valid_attempt(attempt) && step >= 0, "attempt \"{}\" or step {} is invalid", attempt, step);
  return dir + "/" + folder_name(step, Kind::kUnfinished, attempt);
}

bool valid_attempt(std::string_view attempt) {
  return !attempt.empty() && attempt.size() <= 64 && std::all_of(attempt.begin(), attempt.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

std::string new_attempt() {
  return fmt::format("{}-{:08x}", utc_date(wall_seconds(), "%Y%m%dT%H%M%S"), std::random_device()());
}

Result<std::string> begin_attempt(const std::string& dir, int64_t step, const std::string& attempt) {
  const std::string folder = attempt_folder(dir, step, attempt);
  if (auto removed = remove_folder(folder); !removed) return removed.error();  // left by an earlier try
  if (auto made = make_folders(folder); !made) return made.error();
  return folder;
}

Result<void> publish(const std::string& dir, int64_t step, const std::string& attempt) {
  const std::string folder = attempt_folder(dir, step, attempt), target = dir + "/" + step_name(step);
  const auto fit = usable(folder, step);
  if (!fit || fit.value().attempt != attempt) {
    const auto published = read_manifest(target);
    if (published && published.value().attempt == attempt) return complete_publication(dir, step, attempt);
  }
  if (!fit) return fit.error();
  if (fit.value().attempt != attempt)
    return file_error("{}: its manifest says attempt {}, expected {}", folder, fit.value().attempt, attempt);
  if (auto synced = sync_folder(folder); !synced) return synced;
  const auto taken = exists(target);
  if (!taken) return taken.error();
  if (taken.value()) {
    if (auto replaced = replace(dir, step, attempt); !replaced) return replaced;
  } else {
    if (auto renamed = rename_path(folder, target); !renamed) return renamed;
    if (auto synced = sync_folder(dir); !synced) return synced;
  }
  return write_file(dir + "/latest", step_name(step) + "\n", attempt);
}

Result<std::vector<CheckpointCandidate>> checkpoint_candidates(const std::string& dir, const Retry& retry) {
  auto names = names_in(dir, retry);
  if (!names) return names.error();
  std::vector<CheckpointCandidate> candidates;
  for (const Name& name : names.value())
    if (name.kind != Kind::kTrash)
      candidates.push_back({name.step, path_of(dir, name), name.kind == Kind::kUnfinished ? name.attempt : ""});
  return candidates;
}

Result<Manifest> open_candidate(const CheckpointCandidate& candidate, const Retry& retry) {
  if (!candidate.unfinished.empty())
    return file_error("{}: attempt {} did not finish writing it", candidate.path, candidate.unfinished);
  return usable(candidate.path, candidate.step, retry);
}

Result<std::vector<CheckpointEntry>> list_checkpoints(const std::string& dir, const Retry& retry) {
  const auto candidates = checkpoint_candidates(dir, retry);
  if (!candidates) return candidates.error();
  std::vector<CheckpointEntry> entries;
  for (const CheckpointCandidate& candidate : candidates.value()) {
    const auto opened = open_candidate(candidate, retry);
    entries.push_back({candidate.step, candidate.path, opened.ok(), opened ? "" : opened.error().message});
  }
  return entries;
}

Result<void> skip_candidate(const CheckpointCandidate& candidate, const Error& why) {
  if (why.os_error == kOtherFormat)
    return Error{
        fmt::format("{}, or move {} to another folder to use an older checkpoint", why.message, candidate.path),
        why.code, why.os_error};
  log_warn("checkpoint skipped: {}", why.message);
  return {};
}

Result<std::optional<CheckpointEntry>> newest_checkpoint(const std::string& dir, const Retry& retry) {
  const auto candidates = checkpoint_candidates(dir, retry);
  if (!candidates) return candidates.error();
  for (const CheckpointCandidate& candidate : candidates.value()) {
    const auto opened = open_candidate(candidate, retry);
    if (opened) return std::optional(CheckpointEntry{candidate.step, candidate.path, true, ""});
    if (auto skipped = skip_candidate(candidate, opened.error()); !skipped) return skipped.error();
  }
  return std::optional<CheckpointEntry>();
}

Result<void> check_latest(const std::string& dir) {
  const std::string path = dir + "/latest";
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return {};
  return file_error(
      "{}: this is a folder, but the file that names the newest checkpoint must have this path; move the folder away",
      path);
}

Result<std::vector<std::string>> remove_stale_attempts(const std::string& dir, const std::string& attempt,
                                                       const Retry& retry) {
  TRI_REQUIRE(valid_attempt(attempt), "attempt \"{}\" is invalid", attempt);
  auto names = names_in(dir, retry);
  if (!names) return names.error();
  std::vector<std::string> removed;
  for (const Name& name : names.value()) {
    const std::string path = path_of(dir, name);
    if (name.kind == Kind::kPublished) continue;
    if (name.kind == Kind::kUnfinished && name.attempt == attempt) continue;
    if (name.kind == Kind::kOld) {
      const Name published{name.step, Kind::kPublished, ""};
      const auto new_fit = usable(path_of(dir, published), name.step, retry), old_fit = usable(path, name.step, retry);
      // Removes neither until both are known.
      for (const auto* fit : {&new_fit, &old_fit})
        if (unknown(*fit)) return fit->error();
      if (!new_fit && old_fit) {
        if (auto back = take_back(dir, name, attempt); !back) return back.error();
        continue;
      }
    }
    if (auto gone = remove_folder(path); !gone) return gone.error();
    removed.push_back(folder_name(name.step, name.kind, name.attempt));
  }
  auto listed = retried(retry, [&] { return list_folder(dir); });
  if (!listed && listed.error().os_error == ENOENT) return removed;
  if (!listed) return listed.error();
  for (const std::string& name : listed.value()) {
    if (name.rfind("latest.", 0) != 0 || name == fmt::format("latest.{}.tmp", attempt)) continue;
    std::error_code ignored;
    if (fs::remove(dir + "/" + name, ignored)) removed.push_back(name);
  }
  if (!names.value().empty() || !removed.empty())
    if (auto synced = sync_folder(dir); !synced) return synced.error();
  return removed;
}

Result<std::vector<CheckpointEntry>> prunable(const std::string& dir, int keep_last, int64_t keep_every,
                                              const Retry& retry, std::set<std::string>* valid) {
  TRI_REQUIRE(keep_last >= 1 && keep_every >= 0, "keep_last {} or keep_every {} is out of range", keep_last,
              keep_every);
  const auto names = names_in(dir, retry);
  if (!names) return names.error();
  std::set<std::string> of_call;
  std::set<std::string>& known = valid == nullptr ? of_call : *valid;
  std::vector<CheckpointEntry> old;
  int kept = 0;
  for (const Name& name : names.value()) {
    if (name.kind != Kind::kPublished) continue;
    const std::string path = path_of(dir, name);
    if (!known.contains(step_name(name.step)) && !usable(path, name.step, retry)) continue;
    known.insert(step_name(name.step));
    if (kept++ < keep_last || (keep_every > 0 && name.step % keep_every == 0)) continue;
    old.push_back({name.step, path, true, ""});
  }
  return old;
}

Result<std::vector<std::string>> prune(const std::string& dir, int keep_last, int64_t keep_every,
                                       const std::string& attempt, const Retry& retry, std::set<std::string>* valid) {
  TRI_REQUIRE(valid_attempt(attempt), "attempt \"{}\" is invalid", attempt);
  const auto old = prunable(dir, keep_last, keep_every, retry, valid);
  if (!old) return old.error();
  std::vector<std::string> removed;
  for (const CheckpointEntry& entry : old.value()) {
    if (auto gone = discard(dir, *parse_name(fs::path(entry.path).filename()), attempt); !gone) return gone.error();
    removed.push_back(step_name(entry.step));
    if (valid != nullptr) valid->erase(step_name(entry.step));
  }
  return removed;
}

}  // namespace tri
