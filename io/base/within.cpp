#include "io/base/within.h"

#include <map>

#include "io/base/mutex.h"

namespace tri {
namespace {

struct Questions {
  Mutex mutex;
  ConditionVariable changed;
  struct UnderWay {
    int64_t number = 0;
    bool overdue = false;
  };
  std::map<std::string, UnderWay> under_way TRI_GUARDED_BY(mutex);  // [path]
  int64_t last_number TRI_GUARDED_BY(mutex) = 0;
};

// Never destroyed: threads blocked by storage may outlive all other objects.
Questions& questions() {
  static auto* const all = new Questions;
  return *all;
}

}  // namespace

int64_t OutstandingQuestion::begin(const std::string& path, std::chrono::milliseconds timeout) {
  Questions& all = questions();
  const MutexLock lock(all.mutex);
  all.changed.wait_for(all.mutex, timeout, [&]() TRI_REQUIRES(all.mutex) {
    const auto earlier = all.under_way.find(path);
    return earlier == all.under_way.end() || earlier->second.overdue;
  });
  const bool is_new = all.under_way.try_emplace(path, Questions::UnderWay{all.last_number + 1, false}).second;
  return is_new ? ++all.last_number : 0;
}

void OutstandingQuestion::overdue(const std::string& path, int64_t number) {
  Questions& all = questions();
  const MutexLock lock(all.mutex);
  const auto own = all.under_way.find(path);
  if (own != all.under_way.end() && own->second.number == number) own->second.overdue = true;
  all.changed.notify_all();
}

void OutstandingQuestion::end(const std::string& path, int64_t number) {
  Questions& all = questions();
  const MutexLock lock(all.mutex);
  const auto own = all.under_way.find(path);
  if (own != all.under_way.end() && own->second.number == number) all.under_way.erase(own);
  all.changed.notify_all();
}

}  // namespace tri
