// Storage queries with a time limit.
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

// The only query about `path` that may be in progress in this process. While storage hangs, further queries about the
// same path are refused, since each would leave a thread behind.
class OutstandingQuestion {
 public:
  // Waits until an earlier query about `path` has completed, for at most `timeout`, or not at all if that one is
  // overdue. Returns the number of this query, or 0 if it is refused.
  static int64_t begin(const std::string& path, std::chrono::milliseconds timeout);
  static void overdue(const std::string& path, int64_t number);  // its caller has given up
  static void end(const std::string& path, int64_t number);      // it has completed
};

// Returns the value of `task`, which runs on its own thread, or `otherwise` if that takes longer than `timeout`, fails,
// or an earlier query about `path` has not completed. `path` identifies the query: a file, or a file and a purpose. The
// task may outlive the call, so it must own what it uses. Safe for concurrent use.
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
  } catch (const std::exception&) {  // no thread could be created
    OutstandingQuestion::end(path, number);
    return otherwise;
  }
  try {
    if (value.wait_for(timeout) == std::future_status::ready) return value.get();
  } catch (const std::exception&) {  // the task failed
    return otherwise;
  }
  OutstandingQuestion::overdue(path, number);
  return otherwise;
}

}  // namespace tri
