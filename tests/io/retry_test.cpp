#include "io/base/retry.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <vector>

#include "tests/io/skipped_sleeps.h"

namespace tri {
namespace {

using std::chrono::milliseconds;

// Records the pauses of this thread, which take no time.
struct Noted {
  std::vector<milliseconds> pauses;
  const SkippedSleeps skipped{[this](milliseconds pause) { pauses.push_back(pause); }};
};

// Fails `failures` times with `os_error`, then returns 42. Counts its calls.
struct Glitch {
  int failures, os_error;
  int calls = 0;
  Result<int> operator()() {
    if (calls++ < failures) return system_error(os_error, "file");
    return 42;
  }
};

TEST(Retry, distinguishes_transient_from_permanent_errors) {
  const std::set<int> transient = {EIO,        ESTALE,       ETIMEDOUT, EAGAIN,       EREMOTEIO, ENOTCONN,   ESHUTDOWN,
                                   ECONNRESET, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETDOWN,  ENETUNREACH};
  const std::set<int> of_mounts = {ENOENT, ENODEV, ENXIO};
  for (int number = 0; number < 140; ++number) {
    EXPECT_EQ(is_transient(number), transient.contains(number)) << number;
    EXPECT_EQ(is_transient(number, Missing::kTransient), transient.contains(number) || of_mounts.contains(number))
        << number;
  }
  for (const int lasting : {EACCES, EPERM, EROFS, ENOTDIR, ENOSPC, EDQUOT, EFBIG}) EXPECT_FALSE(is_transient(lasting));
}

TEST(Retry, what_passes_is_tried_again_after_longer_and_longer_pauses) {
  for (int failures = 0; failures < 5; ++failures) {
    Noted noted;
    Glitch glitch{.failures = failures, .os_error = EIO};
    testing::internal::CaptureStderr();
    const auto result = retried({}, glitch);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result.value(), 42);
    const std::vector<milliseconds> all = {milliseconds(500), milliseconds(1000), milliseconds(2000),
                                           milliseconds(4000)};
    EXPECT_EQ(noted.pauses, std::vector<milliseconds>(all.begin(), all.begin() + failures));
    EXPECT_EQ(log.find("file: Input/output error; trying again in 0.5 s") != std::string::npos, failures > 0) << log;
  }
}

TEST(Retry, gives_up_after_its_tries_and_says_how_many) {
  for (const int tries : {1, 2, 5}) {
    Noted noted;
    int calls = 0;
    const auto result = retried({.tries = tries}, [&]() -> Result<void> {
      ++calls;
      return system_error(ESTALE, "file");
    });
    ASSERT_FALSE(result);
    EXPECT_EQ(calls, tries);
    EXPECT_EQ(noted.pauses.size(), static_cast<size_t>(tries) - 1);
    EXPECT_EQ(result.error().message,
              tries == 1 ? "file: Stale file handle" : fmt::format("file: Stale file handle (tried {} times)", tries));
    EXPECT_EQ(result.error().os_error, ESTALE);
    EXPECT_EQ(result.error().code, ExitCode::kFile);
  }
}

TEST(Retry, what_lasts_ends_at_once) {
  const std::pair<int, Missing> table[] = {{EACCES, Missing::kTransient},
                                           {ENOSPC, Missing::kTransient},
                                           {ENOENT, Missing::kPermanent},
                                           {0, Missing::kTransient}};
  for (const auto& [os_error, missing] : table) {
    Noted noted;
    int calls = 0;
    const auto result = retried({.missing = missing}, [&, number = os_error]() -> Result<int> {
      ++calls;
      return Error{"as it was", ExitCode::kFile, number};
    });
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "as it was");
    EXPECT_EQ(calls, 1) << os_error;
    EXPECT_TRUE(noted.pauses.empty());
  }
}

}  // namespace
}  // namespace tri
