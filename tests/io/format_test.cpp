#include "io/base/format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/base/date.h"

namespace tri {
namespace {

TEST(Format, bytes_come_in_binary_units) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(int64_t{5000} << 40), "5000.00 TiB");
}

TEST(Format, durations_change_their_unit_with_their_length) {
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(187), "3m07s");
  EXPECT_EQ(format_duration(3720), "1h02m");
  EXPECT_EQ(format_duration(47.5 * 3600), "47h30m");
  EXPECT_EQ(format_duration(60.0 * 3600), "2.5 days");
  EXPECT_EQ(format_duration(792.0 * 3600), "33 days");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(Format, counts_have_three_digits_and_a_unit) {
  EXPECT_EQ(format_count(116), "116");
  EXPECT_EQ(format_count(11600), "11.6k");
  EXPECT_EQ(format_count(1.32e6), "1.32M");
  EXPECT_EQ(format_count(175e9), "175B");
}

TEST(Format, one_of_a_thing_is_no_plural) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "spare machine"), "2 spare machines");
  EXPECT_EQ(counted(1, "microbatch"), "1 microbatch");
  EXPECT_EQ(counted(2, "microbatch"), "2 microbatches");
  EXPECT_EQ(counted(1, "process"), "1 process");
  EXPECT_EQ(counted(2, "process"), "2 processes");
}

TEST(Date, has_the_format_of_strftime) {
  EXPECT_EQ(utc_date(1769903999.9, "%FT%TZ"), "2026-01-31T23:59:59Z");
  EXPECT_EQ(utc_date(0, "%Y%m%dT%H%M%S"), "19700101T000000");
  EXPECT_EQ(local_date(1769903999).size(), std::string("2026-01-31 23:59:59").size());
  EXPECT_EQ(utc_date(1e18, "%F"), "?");
}

}  // namespace
}  // namespace tri
