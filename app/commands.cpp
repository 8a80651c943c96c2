#include "app/commands.h"

#include <cstdio>

#include "io/base/json.h"
#include "io/base/log.h"

namespace tri {

std::string with_schema(std::string_view json) {
  using Json = nlohmann::ordered_json;
  const Json answer = try_parse_json<Json>(json);
  if (answer.is_discarded()) return std::string(json);
  const auto versioned = [](const Json& object) {
    if (!object.is_object()) return object;
    Json whole = {{"schema", kJsonSchema}};
    for (const auto& [key, value] : object.items()) whole[key] = value;
    return whole;
  };
  Json whole = versioned(answer);
  if (answer.is_array()) {
    whole = Json::array();
    for (const Json& object : answer) whole.push_back(versioned(object));
  }
  const size_t line = json.find('\n'), text = json.find_first_not_of(' ', line + 1);
  const int indent = line == json.npos || text == json.npos ? -1 : static_cast<int>(text - line) - 1;
  return whole.dump(indent);
}

void print_answer(std::string_view json) { print_json(with_schema(json)); }

void on_run(Command* command, int& status, std::function<Result<void>()> action) {
  command->callback([&status, action = std::move(action)] {
    const auto result = action();
    if (result) return;
    print_err("{}\n", result.error().message);
    status = static_cast<int>(result.error().code);
  });
}

void on_answer(Command* command, int& status, std::function<Result<bool>()> answer) {
  command->callback([&status, answer = std::move(answer)] {
    const auto yes = answer();
    if (!yes) print_err("{}\n", yes.error().message);
    status = yes ? (yes.value() ? 0 : 1) : static_cast<int>(yes.error().code);
  });
}

int job_status(const Job& job, const Result<void>& result) {
  if (result) return 0;
  if (job.world_rank() == 0) log_last_words(result.error().message);
  return static_cast<int>(result.error().code);
}

void on_job(Command* command, int& status, int* argc, char*** argv, std::function<Result<void>(Job&)> action) {
  command->callback([&status, argc, argv, action = std::move(action)] {
    status = run_job(argc, argv, [&](Job& job) { return job_status(job, action(job)); });
  });
}

void on_watched_job(Command* command, int& status, int* argc, char*** argv, WatchedAction action) {
  command->callback([&status, argc, argv, action = std::move(action)] {
    status = run_watched_job(
        argc, argv, [&](Job& job, ProcessDeadline& deadline) { return job_status(job, action(job, deadline)); });
  });
}

}  // namespace tri
