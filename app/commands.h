// One function per subcommand. It declares the subcommand on `app`; the callback sets `status`, the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "io/base/console.h"
#include "io/base/error.h"
#include "lib/comm/job.h"
#include "lib/fault/process_deadline.h"

namespace tri {

void add_train_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_check_command(CLI::App& app, int& status);
void add_config_command(CLI::App& app, int& status);
void add_bench_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_eval_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_generate_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_data_command(CLI::App& app, int& status);
void add_checkpoint_command(CLI::App& app, int& status);
void add_status_command(CLI::App& app, int& status);
void add_report_command(CLI::App& app, int& status);
void add_timeline_command(CLI::App& app, int& status);
void add_doctor_command(CLI::App& app, int& status, int* argc, char*** argv);
void add_simulate_command(CLI::App& app, int& status);
void add_plan_command(CLI::App& app, int& status);
void add_supervise_command(CLI::App& app, int& status);
void add_help_command(CLI::App& app, int& status);  // help and completion; `app` is the root

// Validators with readable descriptions; those of CLI11 print the largest double.
extern const CLI::Validator kCount;        // a whole number from 1
extern const CLI::Validator kCountOrZero;  // from 0
extern const CLI::Validator kPositive;     // a number above 0
extern const CLI::Validator kNonNegative;  // from 0

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

// Runs `action` if the subcommand is chosen; an Error goes to stderr and sets the exit status.
void on_run(CLI::App* command, int& status, std::function<Result<void>()> action);
// The same for a question: exit status 0 means yes, 1 no.
void on_answer(CLI::App* command, int& status, std::function<Result<bool>()> answer);
// The same for a job of ranks; rank 0 prints the Error, which all ranks must return.
void on_job(CLI::App* command, int& status, int* argc, char*** argv, std::function<Result<void>(Job&)> action);
// The same with deadlines for the whole process (lib/fault/process_deadline.h).
using WatchedAction = std::function<Result<void>(Job&, ProcessDeadline&)>;
void on_watched_job(CLI::App* command, int& status, int* argc, char*** argv, WatchedAction action);
// Returns the exit status of a job that ended with `result`; rank 0 prints its Error, which all ranks must pass.
int job_status(const Job& job, const Result<void>& result);

}  // namespace tri
