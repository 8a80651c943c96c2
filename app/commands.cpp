#include "app/commands.h"

#include <cstdio>

namespace tri {

void on_run(CLI::App* command, int& status, std::function<Result<void>()> action) {
  command->callback([&status, action = std::move(action)] {
    const auto result = action();
    if (result) return;
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    status = static_cast<int>(result.error().code);
  });
}

}  // namespace tri
