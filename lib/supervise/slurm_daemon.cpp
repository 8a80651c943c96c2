#include "lib/supervise/slurm_daemon.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "io/base/proc.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

constexpr int kLookAgain = 10;  // calls, of which there is one a second

bool is_slurmd(const std::string& proc, pid_t process) {
  return text_of(process_folder(process, proc) + "/comm") == "slurmd\n";
}

// 0: unknown.
pid_t parent_of(const std::string& proc, pid_t process) {
  const auto stat = process_stat(process_folder(process, proc));
  return stat ? stat->parent : 0;
}

// The node that "slurmd -N NODE" stands for, where several share a machine; "": that of the machine.
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
  std::vector<std::pair<pid_t, pid_t>> named, unnamed;  // and their parents
  for (const pid_t process : process_ids(proc_)) {
    if (!is_slurmd(proc_, process)) continue;
    const std::string node = node_of(text_of(process_folder(process, proc_) + "/cmdline"));
    if (node == node_) named.emplace_back(process, parent_of(proc_, process));
    if (node.empty()) unnamed.emplace_back(process, parent_of(proc_, process));
  }
  const auto& own = named.empty() ? unnamed : named;
  // Until a child of it, as of each step's start, has a name of its own it has its parent's.
  std::vector<pid_t> parents;
  for (const auto& [process, parent] : own) {
    const bool is_child =
        std::any_of(own.begin(), own.end(), [&, of = parent](const auto& other) { return other.first == of; });
    if (!is_child) parents.push_back(process);
  }
  return parents.size() == 1 ? parents.front() : -1;
}

double SlurmDaemon::gone_seconds() {
  // It may not have been up yet, or not alone; all processes are not to be looked through every second.
  if (process_ < 0 && !node_.empty() && ++num_unknown_ % kLookAgain == 0) process_ = find();
  if (process_ < 0) return 0;
  const auto now = std::chrono::steady_clock::now();
  if (!is_slurmd(proc_, process_)) {
    if (const pid_t again = find(); again >= 0) process_ = again;  // as after a restart of the service
  }
  const bool gone = !is_slurmd(proc_, process_);
  if (gone && !gone_) since_ = now;
  gone_ = gone;
  // More than nothing from the first moment on.
  return gone ? 1e-3 + std::chrono::duration<double>(now - since_).count() : 0;
}

}  // namespace tri
