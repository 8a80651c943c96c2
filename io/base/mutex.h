// std::mutex, a scoped lock and std::condition_variable with annotations for Clang's thread-safety analysis. A build
// with clang++ (`make soak-clang`) then checks that guarded members are accessed only while their mutex is held; g++
// ignores the annotations. The classes of libstdc++ carry none, so use these in their place.
//
//   Mutex mutex_;
//   std::string path_ TRI_GUARDED_BY(mutex_);  // the analysis skips constructors and destructors of the owner
//   void rename() TRI_REQUIRES(mutex_);        // call with the mutex held
//
// The analysis checks a lambda as a function of its own: one that accesses guarded members needs TRI_REQUIRES too, and
// only functions of system headers, or a caller for which the same mutex has the same name, can call it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#ifdef __clang__
#define TRI_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define TRI_THREAD_ATTRIBUTE(x)
#endif

// Of a member, and of a function or lambda:
#define TRI_GUARDED_BY(mutex) TRI_THREAD_ATTRIBUTE(guarded_by(mutex))
#define TRI_REQUIRES(mutex) TRI_THREAD_ATTRIBUTE(requires_capability(mutex))
// Only for the classes below:
#define TRI_ACQUIRE(...) TRI_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TRI_RELEASE() TRI_THREAD_ATTRIBUTE(release_capability())
#define TRI_TRY_ACQUIRE(success) TRI_THREAD_ATTRIBUTE(try_acquire_capability(success))
#define TRI_CAPABILITY(name) TRI_THREAD_ATTRIBUTE(capability(name))
#define TRI_SCOPED_CAPABILITY TRI_THREAD_ATTRIBUTE(scoped_lockable)

namespace tri {

// Not recursive.
class TRI_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TRI_ACQUIRE() { mutex_.lock(); }
  void unlock() TRI_RELEASE() { mutex_.unlock(); }
  bool try_lock() TRI_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class ConditionVariable;
  friend class MutexLock;

  std::mutex mutex_;
};

// Holds a mutex from construction to destruction, except between unlock() and lock().
class TRI_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TRI_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() TRI_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() TRI_RELEASE() { lock_.unlock(); }
  void lock() TRI_ACQUIRE() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Each wait releases `mutex`, which the calling thread holds, and holds it again when it returns.
class ConditionVariable {
 public:
  ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;

  // Wait until a notification, or until `time`. They may return earlier: call them in a loop over the condition.
  void wait(Mutex& mutex) TRI_REQUIRES(mutex) {
    Adopted held(mutex);
    condition_.wait(held.lock);
  }
  void wait_until(Mutex& mutex, std::chrono::steady_clock::time_point time) TRI_REQUIRES(mutex) {
    Adopted held(mutex);
    condition_.wait_until(held.lock, time);
  }
  // Waits until `condition` holds, for at most `limit`. Returns whether it holds. A condition that reads guarded
  // members is a lambda with TRI_REQUIRES(mutex).
  template <class Rep, class Period, class Condition>
  bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& limit, Condition condition)
      TRI_REQUIRES(mutex) {
    Adopted held(mutex);
    return condition_.wait_for(held.lock, limit, std::move(condition));
  }

  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  // A held mutex in the form that std::condition_variable takes. The caller's MutexLock remains responsible for it.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Adopted() { static_cast<void>(lock.release()); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

}  // namespace tri
