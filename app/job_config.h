// The config of a job, for the subcommands that run under mpirun.
#pragma once

#include <string>
#include <vector>

#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct JobConfig {
  Config config;  // resolved for the job's size
  Mesh mesh;      // seen from this rank
};

// Rank 0 reads the file; everybody resolves the same text, so everybody meets the same errors. Collective.
Result<JobConfig> load_job_config(const std::string& path, const std::vector<std::string>& overrides, Job& job);

}  // namespace tri
