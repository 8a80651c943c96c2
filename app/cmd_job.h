#pragma once

#include <CLI/CLI.hpp>

namespace tri {

void add_job_command(CLI::App& app, int& status);  // of a Slurm job that runs `trireme supervise`

}  // namespace tri
