#pragma once

#include <CLI/CLI.hpp>

namespace tri {

void add_job_command(CLI::App& app, int& status);  // for a Slurm job that runs `trireme supervise`

}  // namespace tri
