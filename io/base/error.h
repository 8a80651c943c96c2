// The project's error policy.
//   The user can fix it        Result<T> carrying an Error; its text names the field, the value and the remedy.
//   A machine or peer failed   throw Fatal; nothing handles it: it ends the whole job where it is thrown (run_job).
//   A bug of this program      TRI_REQUIRE; throws Fatal with file and line.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace tri {

// Process exit statuses of all subcommands; scripts and the Slurm requeue logic rely on the numbers. There is also 1:
// an internal error, or the checked condition is false ("they differ").
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,       // config or command line
  kFile = 3,        // file or checkpoint
  kDevice = 4,      // device or driver
  kComm = 5,        // MPI, NCCL, a peer
  kWatchdog = 6,    // a section overran its deadline
  kNotFinite = 7,   // NaN or Inf in loss or gradients
  kNoProgress = 8,  // supervise: several attempts in a row saved no newer checkpoint
  kSuspect = 40,    // doctor: slower than its peers, or configured differently
  kBad = 41,        // doctor: broken, do not use it
  kDrained = 75,    // stopped early by a signal, unavailable storage or too few nodes: re-run the same command
};

// An error that the user can fix. `message` is complete: it is printed as it is.
struct Error {
  std::string message;
  ExitCode code = ExitCode::kUsage;
  int os_error = 0;  // errno of the failed system call; 0: none
};

// A value, or the Error that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// Success, or the Error that explains the failure.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

template <class... Args>
Error file_error(fmt::format_string<Args...> format, Args&&... args) {
  return {fmt::format(format, std::forward<Args>(args)...), ExitCode::kFile};
}

// Returns " (the address space of a process is limited to 4.00 GiB: RLIMIT_AS, ulimit -v)", or "" without a limit. Ends
// messages about memory that could not be allocated or mapped.
std::string address_space_limit();

// Returns "TEXT: No such file or directory", with ExitCode::kFile. `os_error` is the errno of the failed call; after
// ENOMEM the text ends in address_space_limit().
Error system_error_of(int os_error, const std::string& text);
template <class... Args>
Error system_error(int os_error, fmt::format_string<Args...> format, Args&&... args) {
  return system_error_of(os_error, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Error usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {fmt::format(format, std::forward<Args>(args)...), ExitCode::kUsage};
}

// Whether the failure originates in this process, or is how the failure of another rank appears here.
enum class Cause { kHere, kPeer };

// A failure of the machine, a peer or this program. It ends the job where it is thrown (lib/comm/job/job.h, run_job).
class Fatal : public std::runtime_error {
 public:
  Fatal(ExitCode code, const std::string& message, Cause cause = Cause::kHere)
      : std::runtime_error(message), code_(code), cause_(cause) {}
  ExitCode code() const { return code_; }
  Cause cause() const { return cause_; }

 private:
  ExitCode code_;
  Cause cause_;
};

[[noreturn]] void require_failed(const char* file, int line, const char* condition, const std::string& message);

// Returns the value, or throws its Error as Fatal: for errors of the user that were ruled out earlier.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw Fatal(result.error().code, result.error().message);
  return std::move(result).value();
}
inline void value_or_throw(Result<void> result) {
  if (!result) throw Fatal(result.error().code, result.error().message);
}

}  // namespace tri

// An invariant of this program. Example: TRI_REQUIRE(rows > 0, "rows {}", rows).
#define TRI_REQUIRE(condition, ...) \
  ((condition) ? void(0) : ::tri::require_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)))
