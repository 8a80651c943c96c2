// The folder of a run's checkpoints.
//   step_00000100/               a published checkpoint
//   step_00000200.tmp.ATTEMPT/   one being written
//   step_00000100.old.ATTEMPT/   one being replaced, on file systems that can't swap two folders
//   step_00000100.trash.ATTEMPT/ one being removed
//   latest                       the name of the one published last, for people and scripts
//   checkpoint.lock              run_lock.h
// Nothing is ever written under a published name: folders appear and disappear by rename alone. An attempt is one
// start of the job; since names carry it, ranks of an earlier attempt that are still alive cannot touch a later one's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/base/retry.h"
#include "io/checkpoint/manifest.h"

namespace tri {

std::string step_name(int64_t step);                                                           // step_00000100
std::string attempt_folder(const std::string& dir, int64_t step, const std::string& attempt);  // DIR/STEP.tmp.ATTEMPT
bool valid_attempt(std::string_view attempt);  // 1 to 64 letters, digits, '-' and '_'

// "20260131T235959-3f2a9c01": the time (UTC) and chance. One process makes it, all ranks of the job share it.
std::string new_attempt();

// Makes `dir` and the attempt's folder for `step`, empty; returns its path. For one process; the others write into it.
Result<std::string> begin_attempt(const std::string& dir, int64_t step, const std::string& attempt);

enum class Replace {
  kSwap,       // exchange the folders in one step where the file system can
  kRenameOld,  // the other way: rename the old one away first
};

// Gives the attempt's folder its name, durably, and points `latest` to it. Writers have made their files' contents
// durable; the files' names are made so here, by one fsync of the folder for all of them. A checkpoint of the same step
// is replaced. Error, and nothing changed, when the folder has no valid manifest of this step and attempt or lacks a
// file. After any other error it may be called again: what the attempt has renamed already is then completed.
Result<void> publish(const std::string& dir, int64_t step, const std::string& attempt, Replace how = Replace::kSwap);

// What looks like a checkpoint, by its name alone.
struct CheckpointCandidate {
  int64_t step = 0;
  std::string path;
  std::string unfinished;  // the attempt that has not finished it; empty: it was published once
};

// Listing and reading are tried again by `retry` where storage fails for a while, here and below.
//
// Newest step first, of a step the published one first; nothing but names is read. No `dir`, no candidates; a `dir`
// that can't be listed is an error: what it holds is then not known, which is not the same as nothing.
Result<std::vector<CheckpointCandidate>> checkpoint_candidates(const std::string& dir, const Retry& retry = {});

// Its manifest, where it is valid: a valid manifest of that step, and all files with their sizes; their contents are
// for verify(). The error says why it is passed over.
Result<Manifest> open_candidate(const CheckpointCandidate& candidate, const Retry& retry = {});

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
  bool valid = false;
  std::string why;  // it is passed over, when it is not valid
};

// All candidates, each of them opened; the same error.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::string& dir, const Retry& retry = {});

// The newest valid one; those passed over on the way are logged as warnings. Older ones are not opened.
Result<std::optional<CheckpointEntry>> newest_checkpoint(const std::string& dir, const Retry& retry = {});

// Error where a folder has the name `latest`: no checkpoint could be published then.
Result<void> check_latest(const std::string& dir);

// Removes what other attempts left unfinished, and finishes a replacement or removal that was cut short. Returns the
// names of what was removed. Error, and nothing more is removed, when storage does not say what there is. Call it while
// holding the run's lock.
Result<std::vector<std::string>> remove_stale_attempts(const std::string& dir, const std::string& attempt,
                                                       const Retry& retry = {});

// Valid checkpoints, newest first, except the `keep_last` newest and, when keep_every > 0, those of its multiples.
// Those that are not valid, or can't be read at present, neither count nor are among them. Requires keep_last >= 1.
// `valid`: names of folders that the caller knows to be valid, which are not opened; those found valid are added. So a
// run that prunes after each save opens no checkpoint twice.
Result<std::vector<CheckpointEntry>> prunable(const std::string& dir, int keep_last, int64_t keep_every,
                                              const Retry& retry = {}, std::set<std::string>* valid = nullptr);

// Removes these. Nothing goes when `dir` can't be listed. Returns the names of what was removed. Call it while holding
// the run's lock.
Result<std::vector<std::string>> prune(const std::string& dir, int keep_last, int64_t keep_every,
                                       const std::string& attempt, const Retry& retry = {},
                                       std::set<std::string>* valid = nullptr);

}  // namespace tri
