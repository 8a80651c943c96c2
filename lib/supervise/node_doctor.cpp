#include "lib/supervise/node_doctor.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "io/base/format.h"
#include "io/base/json.h"

namespace tri {
namespace {

constexpr int kNotStarted = 127;

// Returns everything written to the file.
std::string contents(int file) {
  std::string text;
  std::array<char, 1 << 16> part;
  for (ssize_t got; (got = ::pread(file, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
    text.append(part.data(), static_cast<size_t>(got));
  return text;
}

// The doctor runs as a separate program, not as a task of the agent's step: MPI would look for that step's other tasks.
// `gpu`: the only GPU that it sees; "": the same GPUs as the agent.
std::vector<std::string> environment_of(const std::string& gpu) {
  constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool of_step = text.rfind("SLURM_", 0) == 0 || text.rfind("PMIX_", 0) == 0 || text.rfind("PMI_", 0) == 0;
    if (!of_step && (gpu.empty() || text.rfind(kVisible, 0) != 0)) environment.emplace_back(text);
  }
  if (!gpu.empty()) environment.push_back(std::string(kVisible) + gpu);
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int worse_status(int a, int b) {
  const auto rank = [](int status) { return status == 41 ? 3 : status == 40 ? 2 : status != 0 ? 1 : 0; };
  return rank(a) >= rank(b) ? a : b;
}

std::vector<std::string> other_gpus(const char* visible, size_t count) {
  std::vector<std::string> gpus;
  if (visible != nullptr) {
    std::istringstream in(visible);
    for (std::string gpu; std::getline(in, gpu, ',') && gpu != "-1";) gpus.push_back(gpu);
  } else {
    for (size_t i = 0; i < count; ++i) gpus.push_back(std::to_string(i));
  }
  if (!gpus.empty()) gpus.erase(gpus.begin());
  return gpus;
}

// Shorter than the driver's timeout, which starts before the doctor does.
int check_seconds(double timeout) { return std::max(1, static_cast<int>(std::min(timeout, 86400.0) * 2 / 3)); }

void NodeDoctor::start(double timeout, const std::vector<std::string>& other_gpus) {
  status_ = -1;
  if (!parts_.empty()) return;  // the result of the running examination is used
  const std::vector<std::string> all{program_, "doctor", "--json", "--check-seconds",
                                     std::to_string(check_seconds(timeout))};
  start_part(all, "");
  for (const std::string& gpu : other_gpus) {
    std::vector<std::string> under_load = all;
    under_load.insert(under_load.end(), {"--only", "gpu_clock,gpu_throttling"});
    start_part(under_load, gpu);
  }
}

void NodeDoctor::start_part(const std::vector<std::string>& command, const std::string& gpu) {
  std::vector<std::string> words = command, environment = environment_of(gpu);
  Part part{.output = Descriptor(::memfd_create("doctor", MFD_CLOEXEC))};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (part.output.get() >= 0)
    ::posix_spawn_file_actions_adddup2(&actions, part.output.get(), STDOUT_FILENO);
  else
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  if (::posix_spawn(&part.process, program_.c_str(), &actions, nullptr, pointers_to(words).data(),
                    pointers_to(environment).data()) == 0)
    parts_.push_back(std::move(part));
  else
    status_ = worse_status(std::max(status_, 0), kNotStarted);
  ::posix_spawn_file_actions_destroy(&actions);
}

int NodeDoctor::status() {
  std::erase_if(parts_, [&](const Part& part) {
    int status = 0;
    if (::waitpid(part.process, &status, WNOHANG) != part.process) return false;
    status_ = worse_status(std::max(status_, 0), WIFEXITED(status) ? WEXITSTATUS(status) : kNotStarted);
    if (part.output.get() < 0) return true;
    const auto found = doctor_findings(contents(part.output.get()));
    findings_.insert(findings_.end(), found.begin(), found.end());
    return true;
  });
  return parts_.empty() ? status_ : -1;
}

std::vector<std::string> NodeDoctor::take_findings() { return std::exchange(findings_, {}); }

std::vector<std::string> doctor_findings(std::string_view json) {
  std::vector<std::string> lines;
  const auto report = try_parse_json<nlohmann::json>(json);
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
