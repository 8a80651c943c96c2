// One function a subcommand: declares it on `app`; its callback sets `status`, the process's exit status.
#pragma once

#include <CLI/CLI.hpp>

namespace tri {

void add_train_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_check_command(CLI::App& app, int& status);
void add_bench_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_data_command(CLI::App& app, int& status);

}  // namespace tri
