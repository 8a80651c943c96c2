#include "io/base/within.h"

#include <condition_variable>
#include <map>
#include <mutex>

namespace tri {
namespace {

struct Questions {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, bool> overdue;  // [path] of those under way
};

// Never destroyed: threads that storage holds up may outlive all other objects.
Questions& questions() {
  static auto* const all = new Questions;
  return *all;
}

}  // namespace

bool OutstandingQuestion::begin(const std::string& path, std::chrono::milliseconds timeout) {
  Questions& all = questions();
  std::unique_lock lock(all.mutex);
  all.changed.wait_for(lock, timeout, [&] {
    const auto earlier = all.overdue.find(path);
    return earlier == all.overdue.end() || earlier->second;
  });
  return all.overdue.try_emplace(path, false).second;
}

void OutstandingQuestion::overdue(const std::string& path) {
  Questions& all = questions();
  const std::lock_guard lock(all.mutex);
  if (const auto own = all.overdue.find(path); own != all.overdue.end()) own->second = true;
  all.changed.notify_all();
}

void OutstandingQuestion::end(const std::string& path) {
  Questions& all = questions();
  const std::lock_guard lock(all.mutex);
  all.overdue.erase(path);
  all.changed.notify_all();
}

}  // namespace tri
