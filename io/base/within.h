// Patience with storage that hangs.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

namespace tri {

// The value of `task`, made by a thread of its own; `otherwise` where that takes longer than `patience`.
template <class Task, class Value = std::invoke_result_t<Task>>
Value within(std::chrono::milliseconds patience, Task task, Value otherwise) {
  try {
    std::packaged_task<Value()> made(std::move(task));
    std::future<Value> value = made.get_future();
    std::thread(std::move(made)).detach();
    if (value.wait_for(patience) == std::future_status::ready) return value.get();
  } catch (const std::exception&) {  // no thread can be had, or the task has failed
  }
  return otherwise;
}

}  // namespace tri
