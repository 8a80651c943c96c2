// One function per subcommand. It declares the subcommand on `app`; the callback sets `status`, the exit status.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "app/command_line.h"
#include "io/base/console.h"
#include "io/base/error.h"
#include "lib/comm/job/job.h"
#include "lib/fault/process_deadline.h"

namespace tri {

void add_train_command(Command& app, int& status, int* argc, char*** argv);
void add_check_command(Command& app, int& status);
void add_config_command(Command& app, int& status);
void add_bench_command(Command& app, int& status, int* argc, char*** argv);
void add_eval_command(Command& app, int& status, int* argc, char*** argv);
void add_generate_command(Command& app, int& status, int* argc, char*** argv);
void add_data_command(Command& app, int& status);
void add_checkpoint_command(Command& app, int& status);
void add_status_command(Command& app, int& status);
void add_report_command(Command& app, int& status);
void add_timeline_command(Command& app, int& status);
void add_doctor_command(Command& app, int& status, int* argc, char*** argv);
void add_simulate_command(Command& app, int& status);
void add_plan_command(Command& app, int& status);
void add_supervise_command(Command& app, int& status);
void add_job_command(Command& app, int& status);   // of a Slurm job that runs `trireme supervise`
void add_help_command(Command& app, int& status);  // help and completion: `app` is the executable's own

// The help of --ema, of the commands that use a checkpoint's weights.
inline constexpr const char* kEmaHelp = "Use the moving average of the weights (optimizer.ema) instead of the weights";

// The version of the shapes that --json prints (app/JSON.md). Raise it when a field is removed or changes its meaning;
// adding a field does not raise it.
inline constexpr int kJsonSchema = 1;

// Returns the JSON text of an answer with "schema": kJsonSchema as the first field of the object or, in a list, of each
// object. Indentation is kept. A text that is not JSON is returned unchanged.
std::string with_schema(std::string_view json);
// Prints the JSON text of an answer to --json, with its schema.
void print_answer(std::string_view json);
// Prints a JSON value (nlohmann::json) as an answer on one line. Bytes that are not UTF-8 become U+FFFD: file names may
// contain them.
template <class Json>
void print_object(const Json& object) {
  print_answer(object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Runs `action` when the subcommand is chosen; an Error goes to stderr and into the exit status.
void on_run(Command* command, int& status, std::function<Result<void>()> action);
// The same for one that answers yes, exit status 0, or no, which is 1.
void on_answer(Command* command, int& status, std::function<Result<bool>()> answer);
// As on_run, for one that is a job of ranks; rank 0 prints the Error, which all ranks bring.
void on_job(Command* command, int& status, int* argc, char*** argv, std::function<Result<void>(Job&)> action);
// The same under deadlines from its first moment to its last (lib/fault/process_deadline.h).
using WatchedAction = std::function<Result<void>(Job&, ProcessDeadline&)>;
void on_watched_job(Command* command, int& status, int* argc, char*** argv, WatchedAction action);
// The exit status of a job that ended with `result`; rank 0 prints its Error, which all ranks bring.
int job_status(const Job& job, const Result<void>& result);

}  // namespace tri
