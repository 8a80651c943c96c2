#include "io/base/hash.h"

#include <gtest/gtest.h>

#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

TEST(Hash, is_xxh3_64) {
  // Values of the specification's reference implementation: no input, and one byte.
  EXPECT_EQ(hex64(xxh3_64("")), "2d06800538d394c2");
  EXPECT_EQ(hex64(xxh3_64("a")), "e6c632b61e964e1f");
}

TEST(Hash, parts_make_the_whole) {
  const Bytes bytes = random_bytes(1, "hash", 5000);
  for (size_t part : {1u, 7u, 64u, 1000u, 5000u}) {
    Xxh3 hash;
    for (size_t at = 0; at < bytes.size(); at += part)
      hash.update(bytes.data() + at, std::min(part, bytes.size() - at));
    EXPECT_EQ(hash.digest(), xxh3_64(bytes.data(), bytes.size())) << part;
  }
}

TEST(Hash, hexadecimal_goes_there_and_back) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{0xFEDCBA9876543210}, ~uint64_t{0}})
    EXPECT_EQ(parse_hex64(hex64(value)), value);
  for (const char* text : {"", "123", "00000000000000000", "000000000000000g", "000000000000000A", "-000000000000001"})
    EXPECT_FALSE(parse_hex64(text)) << text;
}

}  // namespace
}  // namespace tri
