#include "io/tokens/token_file.h"

#include <gtest/gtest.h>

#include "io/base/random.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Two documents, {1, 2, 300} and {65000}, as u16: written out by hand from the format's description.
const std::string kBin = bytes_of({1, 0, 2, 0, 0x2C, 0x01, 0xE8, 0xFD});
const std::string kIdx = std::string("MMIDIDX\0\0", 9) +       //
                         bytes_of({1, 0, 0, 0, 0, 0, 0, 0}) +  // version
                         bytes_of({8}) +                       // u16
                         bytes_of({2, 0, 0, 0, 0, 0, 0, 0}) +  // sequences
                         bytes_of({3, 0, 0, 0, 0, 0, 0, 0}) +  // document entries
                         bytes_of({3, 0, 0, 0, 1, 0, 0, 0}) +  // lengths
                         bytes_of({0, 0, 0, 0, 0, 0, 0, 0}) +  // pointers, in bytes
                         bytes_of({6, 0, 0, 0, 0, 0, 0, 0}) +  //
                         bytes_of({0, 0, 0, 0, 0, 0, 0, 0}) +  // documents
                         bytes_of({1, 0, 0, 0, 0, 0, 0, 0}) +  //
                         bytes_of({2, 0, 0, 0, 0, 0, 0, 0});

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.num_tokens()));
  file.read(0, tokens);
  return tokens;
}

TEST(TokenFile, is_written_byte_for_byte_as_the_format_says) {
  const TemporaryFolder folder;
  auto writer = TokenFileWriter::create(folder / "t", token_type_for(65499));
  ASSERT_TRUE(writer);
  writer.value().add_document(std::vector<int32_t>{1, 2, 300});
  writer.value().add_document(std::vector<int32_t>{65000});
  EXPECT_FALSE(std::filesystem::exists(folder / "t.bin")) << "visible before it is whole";
  ASSERT_TRUE(writer.value().finish());
  EXPECT_EQ(read_all(folder / "t.bin"), kBin);
  EXPECT_EQ(read_all(folder / "t.idx"), kIdx);
}

TEST(TokenFile, is_read_as_the_format_says) {
  const TemporaryFolder folder;
  write_all(folder / "t.bin", kBin);
  write_all(folder / "t.idx", kIdx);
  auto file = TokenFile::open(folder / "t");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file.value().num_documents(), 2);
  EXPECT_EQ(all_tokens(file.value()), (std::vector<int32_t>{1, 2, 300, 65000}));
  EXPECT_EQ(file.value().document_start(1), 3);
  EXPECT_EQ(file.value().document_start(2), 4);
  EXPECT_TRUE(file.value().check_range(0, 4, 65001));
  const auto outside = file.value().check_range(0, 4, 65000);
  ASSERT_FALSE(outside);
  EXPECT_NE(outside.error().message.find("token 3 is 65000"), std::string::npos) << outside.error().message;
}

TEST(TokenFile, every_type_round_trips) {
  const TemporaryFolder folder;
  for (const auto& [type, largest] :
       {std::pair{TokenType::kU8, 255}, std::pair{TokenType::kU16, 65535}, std::pair{TokenType::kI32, 2147483647}}) {
    auto writer = TokenFileWriter::create(folder / "t", type);
    std::vector<int32_t> expected;
    for (int d = 0; d < 20; ++d) {
      std::vector<int32_t> document;
      for (int i = 0; i < d * 3 % 7; ++i)
        document.push_back(static_cast<int32_t>(random_uniform(3, static_cast<uint64_t>(d * 100 + i)) * largest));
      if (d == 7) document.push_back(largest);
      expected.insert(expected.end(), document.begin(), document.end());
      writer.value().add_document(document);  // empty ones among them
    }
    ASSERT_TRUE(writer.value().finish());
    auto file = TokenFile::open(folder / "t");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(all_tokens(file.value()), expected);
    EXPECT_EQ(file.value().num_documents(), 20);
  }
}

TEST(TokenFile, a_writer_that_is_given_up_leaves_nothing) {
  const TemporaryFolder folder;
  {
    auto writer = TokenFileWriter::create(folder / "t", TokenType::kU16);
    writer.value().add_document(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

struct Damage {
  std::string name;
  std::string idx, bin;
  std::string message;  // a part of the error
};

std::string with_byte(std::string bytes, size_t at, int value) {
  bytes[at] = static_cast<char>(value);
  return bytes;
}

TEST(TokenFile, damage_is_refused_with_what_is_wrong) {
  const Damage table[] = {
      {"empty index", "", kBin, "too short for an index header"},
      {"foreign file", "PK" + std::string(100, 'x'), kBin, "does not begin with MMIDIDX"},
      {"other version", with_byte(kIdx, 9, 2), kBin, "version 2, expected 1"},
      {"floats", with_byte(kIdx, 17, 7), kBin, "type 7 (f32)"},
      {"no such type", with_byte(kIdx, 17, 99), kBin, "type 99 (unknown)"},
      {"truncated index", kIdx.substr(0, kIdx.size() - 1), kBin, "truncated or damaged"},
      {"a huge count", with_byte(kIdx, 25, 0x7F), kBin, "truncated or damaged"},
      {"negative length", with_byte(kIdx, 37, 0xFF), kBin, "sequence 0 has length -"},
      {"pointer off", with_byte(kIdx, 50, 7), kBin, "sequence 1 starts at byte 7, expected 6"},
      {"documents backwards", with_byte(kIdx, 66, 3), kBin, "document entry 1 is 3"},
      {"last document short", with_byte(kIdx, 74, 1), kBin, "document entry 2 is 1, expected 2"},
      {"truncated tokens", kIdx, kBin.substr(0, 7), "7 bytes, but"},
      {"another .bin", kIdx, kBin + "xx", "10 bytes, but"},
  };
  for (const Damage& damage : table) {
    const TemporaryFolder folder;
    write_all(folder / "t.idx", damage.idx);
    write_all(folder / "t.bin", damage.bin);
    auto file = TokenFile::open(folder / "t");
    ASSERT_FALSE(file) << damage.name;
    EXPECT_EQ(file.error().code, ExitCode::kFile);
    EXPECT_NE(file.error().message.find(damage.message), std::string::npos)
        << damage.name << ": " << file.error().message;
    EXPECT_NE(file.error().message.find(folder / "t."), std::string::npos) << "names no file";
  }
  EXPECT_FALSE(TokenFile::open("/nonexistent/t"));
}

TEST(TokenFile, mutated_and_truncated_files_are_an_error_or_readable_never_a_crash) {
  const TemporaryFolder folder;
  int opened = 0, refused = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    std::string idx = kIdx, bin = kBin;
    uint64_t draw = 0;
    const auto random = [&](size_t below) { return static_cast<size_t>(random_u64(i, draw++) % below); };
    const size_t flips = random(4);
    for (size_t f = 0; f < flips; ++f) idx[random(idx.size())] = static_cast<char>(random(256));
    if (random(3) == 0) idx.resize(random(idx.size() + 1));
    if (random(3) == 0) bin.resize(random(bin.size() + 1));
    write_all(folder / "t.idx", idx);
    write_all(folder / "t.bin", bin);
    auto file = TokenFile::open(folder / "t");
    if (!file) {
      ++refused;
      EXPECT_FALSE(file.error().message.empty());
      continue;
    }
    ++opened;
    all_tokens(file.value());
    for (int64_t d = 0; d <= file.value().num_documents(); ++d) {
      const int64_t start = file.value().document_start(d);
      EXPECT_TRUE(start >= 0 && start <= file.value().num_tokens());
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tri
