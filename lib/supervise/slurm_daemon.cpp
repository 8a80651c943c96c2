#include "lib/supervise/slurm_daemon.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "io/base/proc.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

constexpr int kLookAgain = 10;  // calls; there is one per second

bool is_slurmd(const std::string& proc, pid_t process) {
  return text_of(process_folder(process, proc) + "/comm") == "slurmd\n";
}

// Returns 0 if the parent is unknown.
pid_t parent_of(const std::string& proc, pid_t process) {
  const auto stat = process_stat(process_folder(process, proc));
  return stat ? stat->parent : 0;
}

// Returns NODE of "slurmd -N NODE", used if several nodes share a machine; "" if the machine is the node.
std::string node_of(const std::string& command) {
  const std::string mark = std::string(1, '\0') + "-N";
  const size_t at = command.find(mark);
  if (at == command.npos) return "";
  size_t begin = at + mark.size();
  if (begin < command.size() && command[begin] == '\0') ++begin;
  return command.substr(begin, command.find('\0', begin) - begin);
}

}  // namespace

SlurmDaemon::SlurmDaemon(std::string node, std::string proc) : node_(std::move(node)), proc_(std::move(proc)) {
  if (!node_.empty()) process_ = find();
}

pid_t SlurmDaemon::find() const {
  std::vector<std::pair<pid_t, pid_t>> named, unnamed;  // with their parents
  for (const pid_t process : process_ids(proc_)) {
    if (!is_slurmd(proc_, process)) continue;
    const std::string node = node_of(text_of(process_folder(process, proc_) + "/cmdline"));
    if (node == node_) named.emplace_back(process, parent_of(proc_, process));
    if (node.empty()) unnamed.emplace_back(process, parent_of(proc_, process));
  }
  const auto& own = named.empty() ? unnamed : named;
  // A child, which slurmd forks to start a step, has its parent's name until it sets its own.
  std::vector<pid_t> parents;
  for (const auto& [process, parent] : own) {
    const bool is_child =
        std::any_of(own.begin(), own.end(), [&, of = parent](const auto& other) { return other.first == of; });
    if (!is_child) parents.push_back(process);
  }
  return parents.size() == 1 ? parents.front() : -1;
}

double SlurmDaemon::gone_seconds() {
  // slurmd may not have been up yet, or not alone. Search all processes only now and then, not every second.
  if (process_ < 0 && !node_.empty() && ++num_unknown_ % kLookAgain == 0) process_ = find();
  if (process_ < 0) return 0;
  const auto now = std::chrono::steady_clock::now();
  if (!is_slurmd(proc_, process_)) {
    if (const pid_t again = find(); again >= 0) process_ = again;  // found after a restart of the service
  }
  const bool gone = !is_slurmd(proc_, process_);
  if (gone && !gone_) since_ = now;
  gone_ = gone;
  // Positive from the first moment on.
  return gone ? 1e-3 + std::chrono::duration<double>(now - since_).count() : 0;
}

}  // namespace tri
