// Questions to storage with a time limit.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace tri {

// The one question about `path` that may be under way in this process. While storage hangs, further questions about the
// same path are not asked: each would leave a thread behind.
class OutstandingQuestion {
 public:
  // Waits until an earlier question about `path` is answered, for at most `timeout`, or not at all where that one is
  // overdue. Whether this one may be asked then.
  static bool begin(const std::string& path, std::chrono::milliseconds timeout);
  static void overdue(const std::string& path);  // its asker has given up
  static void end(const std::string& path);      // it is answered
};

// The value of `task`, which a thread of its own computes; `otherwise` where that takes longer than `timeout`, fails,
// or where an earlier question about `path` has had no answer yet. `path` names what is asked: a file, or a file and a
// purpose. The task may outlive the call, so it owns what it uses. Safe for concurrent use.
template <class Task, class Value = std::invoke_result_t<Task>>
Value within(const std::string& path, std::chrono::milliseconds timeout, Task task, Value otherwise) {
  if (!OutstandingQuestion::begin(path, timeout)) return otherwise;
  std::future<Value> value;
  try {
    std::packaged_task<Value()> made(std::move(task));
    value = made.get_future();
    std::thread([made = std::move(made), path]() mutable {
      made();
      OutstandingQuestion::end(path);
    }).detach();
  } catch (const std::exception&) {  // no thread can be had
    OutstandingQuestion::end(path);
    return otherwise;
  }
  try {
    if (value.wait_for(timeout) == std::future_status::ready) return value.get();
  } catch (const std::exception&) {  // the task has failed
    return otherwise;
  }
  OutstandingQuestion::overdue(path);
  return otherwise;
}

}  // namespace tri
