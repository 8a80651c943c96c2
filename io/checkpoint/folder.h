// The folder of a run's checkpoints.
//   step_00000100/               a published checkpoint
//   step_00000200.tmp.ATTEMPT/   a checkpoint being written
//   step_00000100.old.ATTEMPT/   a checkpoint being replaced, on file systems that cannot swap two folders
//   step_00000100.trash.ATTEMPT/ a checkpoint being removed
//   latest                       the name of the one published last, for people and scripts
//   checkpoint.lock              run_lock.h
// A published folder is never written to: folders appear and disappear only by rename. An attempt is one start of the
// job. Names contain it, so surviving ranks of an earlier attempt cannot touch a later one's folders.
//
// Errors have code kFile. Functions are called by one process of the job unless noted.
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

// Returns a new name, "20260131T235959-3f2a9c01": the time (UTC) and random digits. One process creates it for all
// ranks of the job.
std::string new_attempt();

// Creates `dir` and the attempt's empty folder for `step`; returns its path. One process calls it; the others write
// into it.
Result<std::string> begin_attempt(const std::string& dir, int64_t step, const std::string& attempt);

// Publishes the attempt's folder durably under its final name, replacing a checkpoint of the same step, and points
// `latest` to it. Exchanges the two folders atomically if the file system can. Writers must have made their files'
// contents durable; one fsync of the folder here makes the names durable. Fails without any change if the folder has no
// valid manifest of this step and attempt, or lacks a file. After any other error it may be called again and completes
// what the attempt has begun.
Result<void> publish(const std::string& dir, int64_t step, const std::string& attempt);

// A folder whose name is that of a checkpoint.
struct CheckpointCandidate {
  int64_t step = 0;
  std::string path;
  std::string unfinished;  // the attempt that has not finished it; empty: it was published
};

// Lists the candidates by name alone, newest step first; of one step the published one comes first. Returns none if
// there is no `dir`; fails if `dir` cannot be listed, since its contents are then unknown. Here and below, listing and
// reading retry transient failures as `retry` says.
Result<std::vector<CheckpointCandidate>> checkpoint_candidates(const std::string& dir, const Retry& retry = {});

// Returns the candidate's manifest if it is valid for that step and all files have their sizes; verify() checks their
// contents. The error says why the candidate is skipped.
Result<Manifest> open_candidate(const CheckpointCandidate& candidate, const Retry& retry = {});

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
  bool valid = false;
  std::string why;  // why it is skipped, if it is not valid
};

// Opens all candidates. Fails like checkpoint_candidates().
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::string& dir, const Retry& retry = {});

// Logs that a search for the newest checkpoint skips a candidate; `why` is the error of open_candidate(). Fails, with
// os_error kOtherFormat, if another version of this program wrote the candidate: it may be whole, so an older one would
// be another model than the user means, and a run that resumes from that one would replace it.
Result<void> skip_candidate(const CheckpointCandidate& candidate, const Error& why);

// Returns the newest valid checkpoint; logs a warning for each newer candidate that it skips. Does not open older ones.
// Fails like skip_candidate().
Result<std::optional<CheckpointEntry>> newest_checkpoint(const std::string& dir, const Retry& retry = {});

// Fails if `latest` is a folder, since no checkpoint could be published then.
Result<void> check_latest(const std::string& dir);

// Removes what other attempts left unfinished, and completes an interrupted replacement or removal. Returns the names
// of what was removed. Fails, and removes nothing more, if storage does not answer. The caller must hold the run's
// lock.
Result<std::vector<std::string>> remove_stale_attempts(const std::string& dir, const std::string& attempt,
                                                       const Retry& retry = {});

// Returns the valid checkpoints, newest first, without the `keep_last` newest and, if keep_every > 0, those at its
// multiples. Ignores checkpoints that are invalid or cannot be read at present. Requires keep_last >= 1. `valid`: names
// of folders that the caller knows to be valid, which are not opened; adds those found valid. So a run that prunes
// after each save opens no checkpoint twice.
Result<std::vector<CheckpointEntry>> prunable(const std::string& dir, int keep_last, int64_t keep_every,
                                              const Retry& retry = {}, std::set<std::string>* valid = nullptr);

// Removes the checkpoints that prunable() returns; none if `dir` cannot be listed. Returns the names of what was
// removed. The caller must hold the run's lock.
Result<std::vector<std::string>> prune(const std::string& dir, int keep_last, int64_t keep_every,
                                       const std::string& attempt, const Retry& retry = {},
                                       std::set<std::string>* valid = nullptr);

}  // namespace tri
