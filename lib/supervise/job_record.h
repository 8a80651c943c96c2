// What a batch job stores between its starts: run.dir/slurm.state, lines "name=value". submit.sh reads the job from it.
// The line "schema=1" is the format's version; files of earlier releases lack it.
//
// Slurm counts the starts of a job, so none is missed. Restarts since the last start that produced a newer checkpoint
// count against the job's budget. That start's number is in the record and at the end of the job's comment
// ("trireme-progress:3"), where starts that fail before they see the run folder can read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

struct JobRecord {
  std::string job;
  int64_t best_step = 0;              // of the newest checkpoint of any start of this job
  int progress_restart = 0;           // the last start that increased best_step; 0: none, or the first
  std::vector<std::string> excluded;  // nodes that Slurm was requested to exclude from this job

  bool operator==(const JobRecord&) const = default;
};

std::string to_text(const JobRecord& record);
// Fails if a newer release wrote `text`. `source`: the path, for the message.
Result<void> check_record_schema(std::string_view source, std::string_view text);
// Returns the record in `text` if it is that of `fresh.job`, else `fresh`. `fresh` replaces missing and damaged fields.
// `restart`: the number of this start, which progress_restart cannot exceed.
JobRecord job_record_from(std::string_view text, const JobRecord& fresh, int restart);
std::string job_of_record(std::string_view text);  // "": it names none

// Returns the start that a job's comment names, or 0 if there is none or its number is above `restart`.
int progress_in_comment(std::string_view comment, int restart);
// Returns the comment with this number, after the user's own text.
std::string comment_with_progress(std::string_view comment, int restart);

}  // namespace tri
