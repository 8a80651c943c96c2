// trireme: trains large language models with tensor, pipeline and data parallelism. `trireme --help`.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "app/command_tree.h"
#include "app/commands.h"
#include "app/version.h"
#include "io/base/error.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "lib/fault/stop_signals.h"

namespace tri {
namespace {

bool has_word(int argc, char** argv, const char* word) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], word) == 0) return true;
  return false;
}

// Returns whether the process is a rank of a training run or its driver, which note stop signals from the start.
bool notes_stop_signals(int argc, char** argv) {
  if (argc < 2) return false;
  if (std::strcmp(argv[1], "train") == 0) return true;
  return std::strcmp(argv[1], "supervise") == 0 && !has_word(argc, argv, "--agent") &&
         !has_word(argc, argv, "--nodes") && !has_word(argc, argv, "--clear") && !has_word(argc, argv, "--lift");
}

// Returns whether the command continues when the reader of its output leaves, since it may write files, which must not
// stay incomplete. The others print text, some of them without end.
bool outlives_its_reader(int argc, char** argv) {
  constexpr std::array kPrinters{"eval", "generate", "help", "status"};
  return argc >= 2 && std::none_of(kPrinters.begin(), kPrinters.end(),
                                   [&](const char* name) { return std::strcmp(argv[1], name) == 0; });
}

// Called before shared libraries initialise, which takes long and may start threads.
void set_signals(int argc, char** argv, char**) {
  if (notes_stop_signals(argc, argv)) StopSignals();
  if (outlives_its_reader(argc, argv)) ignore_signal(SIGPIPE);  // becomes a write error, EPIPE
  ignore_signal(SIGXFSZ);  // a file beyond the size limit (ulimit -f) becomes a write error, EFBIG
}

int run(int argc, char** argv) {
  Command app{
      "trireme trains GPT- and LLaMA-family models over MPI with tensor, context, pipeline, data and expert "
      "parallelism"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Print the help of all subcommands");
  bool json = false;
  auto* as_json = app.add_flag("--json", json, "With --version: print one JSON object");
  as_json->needs(app.set_version_flag(
      "--version", [&json] { return json ? with_schema(version_json()) : version_text(); },
      "Print the version, the commit, the compilers and the libraries in use"));
  int status = 0;
  add_train_command(app, status, &argc, &argv);
  add_check_command(app, status);
  add_config_command(app, status);
  add_bench_command(app, status, &argc, &argv);
  add_eval_command(app, status, &argc, &argv);
  add_generate_command(app, status, &argc, &argv);
  add_data_command(app, status);
  add_checkpoint_command(app, status);
  add_status_command(app, status);
  add_report_command(app, status);
  add_timeline_command(app, status);
  add_doctor_command(app, status, &argc, &argv);
  add_simulate_command(app, status);
  add_plan_command(app, status);
  add_supervise_command(app, status);
  add_help_command(app, status);
  try {
    const auto parsed = app.parse(argc, argv);
    if (parsed) return status;
    print_error_text(usage_problem(app, parsed.error().message));
    return static_cast<int>(ExitCode::kUsage);
  } catch (const Fatal& fatal) {
    log_error("{}", fatal.what());
    return static_cast<int>(fatal.code());
  } catch (const std::bad_alloc&) {
    log_error("out of memory on the host{}", address_space_limit());
    return 1;
  } catch (const std::exception& problem) {
    log_error("{}", problem.what());
    return 1;
  }
}

}  // namespace
}  // namespace tri

__attribute__((section(".preinit_array"), used)) static void (*g_set_signals)(int, char**, char**) = tri::set_signals;

int main(int argc, char** argv) {
  const int status = tri::run(argc, argv);
  const auto printed = tri::finish_output();
  if (printed) return status;
  tri::log_error("{}", printed.error().message);
  return status != 0 ? status : static_cast<int>(tri::ExitCode::kFile);
}
