// trireme: trains large language models with tensor, pipeline and data parallelism. `trireme --help`.
#include <exception>

#include "app/command_tree.h"
#include "app/commands.h"
#include "app/version.h"
#include "io/base/error.h"
#include "io/base/log.h"

int main(int argc, char** argv) {
  CLI::App app{"trireme trains GPT- and LLaMA-family models with 3D parallelism over MPI"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all subcommands");
  bool json = false;
  auto* as_json = app.add_flag("--json", json, "With --version: for machines, one object");
  as_json->needs(app.set_version_flag(
      "--version", [&json] { return json ? tri::version_json() : tri::version_text(); },
      "Version, commit, compilers and the libraries that run"));
  int status = 0;
  tri::add_train_command(app, status, &argc, &argv);
  tri::add_check_command(app, status);
  tri::add_config_command(app, status);
  tri::add_bench_command(app, status, &argc, &argv);
  tri::add_eval_command(app, status, &argc, &argv);
  tri::add_generate_command(app, status, &argc, &argv);
  tri::add_data_command(app, status);
  tri::add_checkpoint_command(app, status);
  tri::add_status_command(app, status);
  tri::add_report_command(app, status);
  tri::add_timeline_command(app, status);
  tri::add_doctor_command(app, status, &argc, &argv);
  tri::add_simulate_command(app, status);
  tri::add_plan_command(app, status);
  tri::add_supervise_command(app, status);
  tri::add_help_command(app, status);
  try {
    app.parse(argc, argv);
    return status;
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return app.exit(problem);  // help and version
    fmt::print(stderr, "{}", tri::usage_problem(app, problem));
    return static_cast<int>(tri::ExitCode::kUsage);
  } catch (const tri::Fatal& fatal) {
    tri::log_error("{}", fatal.what());
    return static_cast<int>(fatal.code());
  } catch (const std::exception& problem) {
    tri::log_error("{}", problem.what());
    return 1;
  }
}
