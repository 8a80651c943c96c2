// Questions to storage with a time limit.
#pragma once

#include <chrono>
#include <cstdint>
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
  // overdue. Returns the number of this question, or 0 if it may not be asked.
  static int64_t begin(const std::string& path, std::chrono::milliseconds timeout);
  static void overdue(const std::string& path, int64_t number);  // its asker has given up
  static void end(const std::string& path, int64_t number);      // it is answered
};

// The value of `task`, which a thread of its own computes; `otherwise` where that takes longer than `timeout`, fails,
// or where an earlier question about `path` has had no answer yet. `path` names what is asked: a file, or a file and a
// purpose. The task may outlive the call, so it owns what it uses. Safe for concurrent use.
template <class Task, class Value = std::invoke_result_t<Task>>
Value within(const std::string& path, std::chrono::milliseconds timeout, Task task, Value otherwise) {
  const int64_t number = OutstandingQuestion::begin(path, timeout);
  if (number == 0) return otherwise;
  std::future<Value> value;
  try {
    std::packaged_task<Value()> made(std::move(task));
    value = made.get_future();
    std::thread([made = std::move(made), path, number]() mutable {
      made();
      OutstandingQuestion::end(path, number);
    }).detach();
  } catch (const std::exception&) {  // no thread can be had
    OutstandingQuestion::end(path, number);
    return otherwise;
  }
  try {
    if (value.wait_for(timeout) == std::future_status::ready) return value.get();
  } catch (const std::exception&) {  // the task has failed
    return otherwise;
  }
  OutstandingQuestion::overdue(path, number);
  return otherwise;
}

}  // namespace tri
