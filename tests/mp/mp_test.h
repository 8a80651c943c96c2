// Shared by the programs that run under mpirun: a gtest main in which every rank runs every test and rank 0 reports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "lib/comm/job/job.h"

namespace tri {

inline Job*& test_job() {
  static Job* job = nullptr;
  return job;
}

// Returns the CPU, or the kind that TRIREME_TEST_DEVICE names.
inline DeviceKind test_device_kind() {
  const char* wanted = std::getenv("TRIREME_TEST_DEVICE");
  const auto kind = wanted == nullptr ? DeviceKind::kCpu : enum_from_name<DeviceKind>(wanted);
  TRI_REQUIRE(kind.has_value(), "TRIREME_TEST_DEVICE={}: {}", wanted, enum_choices<DeviceKind>());
  return *kind;
}

// Opens the CPU or, with TRIREME_TEST_DEVICE=cuda, this rank's GPU.
inline std::unique_ptr<Device> open_test_device() {
  return value_or_throw(open_device(test_device_kind(), test_job()->node_rank()));
}

// Runs all tests on all ranks. A failure on any rank fails the program.
inline int run_mp_tests(int argc, char** argv) {
  return run_job(&argc, &argv, [&](Job& job) {
    test_job() = &job;
    testing::InitGoogleTest(&argc, argv);
    if (job.world_rank() != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
    }
    const bool passed = RUN_ALL_TESTS() == 0;
    const auto all = job.all_gather(passed);
    const auto failed = std::count(all.begin(), all.end(), false);
    if (job.world_rank() == 0 && failed > 0) fmt::print("{} rank(s) failed\n", static_cast<int>(failed));
    return failed > 0 ? 1 : 0;
  });
}

}  // namespace tri
