#include "lib/supervise/node_doctor.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/base/format.h"

namespace tri {
namespace {

constexpr int kCheckSeconds = 40;  // less than the driver's patience (Thresholds::doctor_seconds), which starts before

// All that was written to it.
std::string contents(int file) {
  std::string text;
  std::array<char, 1 << 16> part;
  for (ssize_t got; (got = ::pread(file, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
    text.append(part.data(), static_cast<size_t>(got));
  return text;
}

// As a program of its own, not as a task of the step that the agent is: MPI would look for that step's other tasks.
std::vector<char*> environment_without_slurm() {
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.rfind("SLURM_", 0) != 0 && text.rfind("PMIX_", 0) != 0 && text.rfind("PMI_", 0) != 0)
      environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  return environment;
}

}  // namespace

void NodeDoctor::start() {
  status_ = -1;
  if (process_ > 0) return;  // the one before has not ended: its answer will do
  std::vector<std::string> words{program_, "doctor", "--json", "--check-seconds", std::to_string(kCheckSeconds)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::vector<char*> environment = environment_without_slurm();
  output_ = Descriptor(::memfd_create("doctor", MFD_CLOEXEC));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (output_.get() >= 0)
    ::posix_spawn_file_actions_adddup2(&actions, output_.get(), STDOUT_FILENO);
  else
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  if (::posix_spawn(&process_, program_.c_str(), &actions, nullptr, argv.data(), environment.data()) != 0) {
    process_ = -1;
    status_ = 127;
  }
  ::posix_spawn_file_actions_destroy(&actions);
}

int NodeDoctor::status() {
  int status = 0;
  if (process_ > 0 && ::waitpid(process_, &status, WNOHANG) == process_) {
    process_ = -1;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 127;
    if (output_.get() >= 0) findings_ = doctor_findings(contents(output_.get()));
  }
  return status_;
}

std::vector<std::string> NodeDoctor::take_findings() { return std::exchange(findings_, {}); }

std::vector<std::string> doctor_findings(std::string_view json) {
  std::vector<std::string> lines;
  const auto report = nlohmann::json::parse(json, nullptr, false);
  if (!report.is_object()) return lines;
  const auto findings = report.find("findings");
  if (findings == report.end() || !findings->is_array()) return lines;
  for (const auto& finding : *findings) {
    if (!finding.is_object()) continue;
    const auto verdict = finding.find("verdict"), text = finding.find("text");
    if (verdict != finding.end() && verdict->is_string() && text != finding.end() && text->is_string())
      lines.push_back(fmt::format("doctor: {}: {}", verdict->get<std::string>(), text->get<std::string>()));
  }
  return lines;
}

}  // namespace tri
