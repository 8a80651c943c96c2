// trireme check: what a config will do, without starting it.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "lib/config/config.h"
#include "lib/simulate/check.h"

namespace tri {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool fields = false;
};

Result<void> check(const Options& options) {
  if (options.fields) {
    std::printf("%s", config_help().c_str());
    return {};
  }
  if (options.config.empty() || options.ranks < 1)
    return usage_error("check needs CONFIG and --ranks N, the number of MPI ranks to plan for; or --fields alone");
  auto text = read_config_text(options.config);
  if (!text) return text.error();
  auto parsed = parse_config(text.value(), options.config, options.overrides);
  if (!parsed) return parsed.error();
  auto config = resolve_config(std::move(parsed).value(), options.ranks);
  if (!config) return config.error();
  std::printf("%s", check_report(config.value(), options.ranks).c_str());
  return {};
}

}  // namespace

void add_check_command(CLI::App& app, int& status) {
  auto* command = app.add_subcommand("check", "Topology, memory, FLOPs and bubble of a config, without starting it");
  auto options = std::make_shared<Options>();
  command->add_option("config", options->config, "YAML run config");
  command->add_option("--ranks", options->ranks, "Number of MPI ranks to plan for");
  command->add_option("--set", options->overrides, "section.key=value; repeatable");
  command->add_flag("--fields", options->fields, "Print every config field: default, allowed values, consequence");
  command->callback([options, &status] {
    if (auto result = check(*options); !result) {
      std::fprintf(stderr, "%s\n", result.error().message.c_str());
      status = static_cast<int>(result.error().code);
    }
  });
}

}  // namespace tri
