// One function a subcommand: declares it on `app`; its callback sets `status`, the process's exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "io/base/error.h"

namespace tri {

void add_train_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_check_command(CLI::App& app, int& status);
void add_bench_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_data_command(CLI::App& app, int& status);
void add_checkpoint_command(CLI::App& app, int& status);

// Runs `action` when the subcommand is chosen; an Error goes to stderr and into the exit status.
void on_run(CLI::App* command, int& status, std::function<Result<void>()> action);

}  // namespace tri
