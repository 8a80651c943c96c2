// trireme help, trireme completion: describe the executable.
#include <memory>
#include <string>
#include <vector>

#include "app/command_tree.h"
#include "app/commands.h"
#include "app/version.h"

namespace tri {
namespace {

Result<void> help(const Command& root, const std::vector<std::string>& words, bool man) {
  if (man) {
    print_out("{}", manual_page(root, version_number()));
    return {};
  }
  std::string path = "trireme";
  for (const std::string& word : words) path += " " + word;
  for (const Command* command : root.all()) {
    if (command->path() != path) continue;
    print_out("{}", command->help());
    return {};
  }
  return usage_error("{}: no such command; `trireme --help` lists them", path);
}

}  // namespace

void add_help_command(Command& app, int& status) {
  auto* command =
      app.add_subcommand("help", "Print the help of a subcommand (trireme help data prepare) or the man page");
  auto words = std::make_shared<std::vector<std::string>>();
  auto man = std::make_shared<bool>(false);
  command->add_option("command", *words, "The subcommand");
  command->add_flag("--man", *man, "Print a man page of all commands and config fields: trireme help --man | man -l -");
  on_run(command, status, [&app, words, man] { return help(app, *words, *man); });

  auto* completion = app.add_subcommand(
      "completion", "Print a script that completes command lines: source <(trireme completion bash)");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "Which shell")->required()->check(choice_of({"bash"}));
  // The option writes into *shell when the command line is read, which is after this function.
  on_run(completion, status, [&app, shell]() -> Result<void> {
    print_out("{}", bash_completion(app));
    return {};
  });
}

}  // namespace tri
