// Which checkpoints a run keeps.
#include "lib/checkpoint/retention.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace tri::test {
namespace {

TEST(Retention, is_that_of_the_run_as_it_last_ran) {
  const TemporaryFolder run;
  const auto expect = [&](int keep_last, int64_t keep_every, const std::string& source) {
    const Retention kept = value_or_throw(retention_of(run.path()));
    EXPECT_EQ(kept.keep_last, keep_last) << source;
    EXPECT_EQ(kept.keep_every, keep_every) << source;
    EXPECT_EQ(kept.source, source);
  };
  expect(CheckpointConfig{}.keep_last, 0, "the defaults");  // there are neither configs nor checkpoints
  write_all(run / "config.yaml", "checkpoint: {keep_last: 5, keep_every: 100}\n");
  expect(5, 100, run / "config.yaml");
  write_all(run / "resolved.yaml", "checkpoint: {keep_last: 7}\n");
  expect(7, 0, run / "resolved.yaml");
  write_all(run / "resolved.yaml", "checkpoint: {keep_last: 0}\n");
  EXPECT_FALSE(retention_of(run.path())) << "no guess where the run cannot be understood";
  EXPECT_FALSE(retention_of(run / "nowhere"));
}

}  // namespace
}  // namespace tri::test
