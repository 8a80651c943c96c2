#include "io/tokens/token_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "io/base/random.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Two documents, {1, 2, 300} and {65000}, as u16, written by hand from the format's description.
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
  const auto index = DocumentIndex::open(folder / "t");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index.value().num_documents(), 2);
  EXPECT_EQ(index.value().document_start(1), 3);
  EXPECT_EQ(index.value().document_start(2), 4);
  EXPECT_TRUE(file.value().check_range(0, 4, 65001));
  const auto outside = file.value().check_range(0, 4, 65000);
  ASSERT_FALSE(outside);
  EXPECT_NE(outside.error().message.find("token 3 is 65000"), std::string::npos) << outside.error().message;
}

// Opens and checks a whole index.
Result<DocumentIndex> checked_index(const std::string& prefix) {
  auto index = DocumentIndex::open(prefix);
  if (index)
    if (auto checked = index.value().check(); !checked) return checked.error();
  return index;
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
      writer.value().add_document(document);  // some of them are empty
    }
    ASSERT_TRUE(writer.value().finish());
    auto file = TokenFile::open(folder / "t");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(all_tokens(file.value()), expected);
    EXPECT_EQ(file.value().num_documents(), 20);
    const DocumentIndex index = value_or_throw(DocumentIndex::open(folder / "t"));
    int64_t start = 0;
    for (int64_t d = 0; d < 20; ++d) {
      EXPECT_EQ(index.document_start(d), start);
      start += d * 3 % 7 + (d == 7);
    }
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
  std::string message;   // a part of the error
  bool between = false;  // the damage is between the ends of the arrays, which a reader of tokens does not read
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
      {"negative length", with_byte(kIdx, 37, 0xFF), kBin, "sequence 0 has length -", true},
      {"pointer off", with_byte(kIdx, 50, 7), kBin, "sequence 1 starts at byte 7, expected 6"},
      {"documents backwards", with_byte(kIdx, 66, 3), kBin, "document entry 1 is 3", true},
      {"last document short", with_byte(kIdx, 74, 1), kBin, "document entry 2 is 1, expected 2"},
      {"truncated tokens", kIdx, kBin.substr(0, 7), "7 bytes, but"},
      {"another .bin", kIdx, kBin + "xx", "10 bytes, but"},
  };
  for (const Damage& damage : table) {
    const TemporaryFolder folder;
    write_all(folder / "t.idx", damage.idx);
    write_all(folder / "t.bin", damage.bin);
    const auto file = TokenFile::open(folder / "t");
    EXPECT_EQ(file.ok(), damage.between) << damage.name;
    const auto index = checked_index(folder / "t");
    ASSERT_FALSE(file && index) << damage.name;
    const Error& error = index ? file.error() : index.error();
    EXPECT_EQ(error.code, ExitCode::kFile);
    EXPECT_NE(error.message.find(damage.message), std::string::npos) << damage.name << ": " << error.message;
    EXPECT_NE(error.message.find(folder / "t."), std::string::npos) << "names no file";
    if (!file) {
      EXPECT_NE(file.error().message.find(folder / "t."), std::string::npos) << damage.name << " names no file";
    }
  }
  EXPECT_FALSE(TokenFile::open("/nonexistent/t"));
}

// On network storage another machine may truncate it at any time; a read of a mapped page would then raise SIGBUS.
TEST(TokenFile, the_truncation_of_an_open_index_is_an_error) {
  const TemporaryFolder folder;
  write_all(folder / "t.idx", kIdx);
  const DocumentIndex index = value_or_throw(DocumentIndex::open(folder / "t"));
  EXPECT_EQ(index.document_start(1), 3);
  std::filesystem::resize_file(folder / "t.idx", 0);
  EXPECT_THROW(index.document_start(1), Fatal);
  EXPECT_FALSE(index.check());
}

TEST(TokenFile, bounds_are_the_starts_of_the_documents_in_between) {
  const TemporaryFolder folder;
  auto writer = value_or_throw(TokenFileWriter::create(folder / "t", TokenType::kU16));
  std::vector<int64_t> starts{0};
  for (int d = 0; d < 5000; ++d) {
    const size_t length = random_u64(1, static_cast<uint64_t>(d)) % 4 * (d % 3);  // some are empty
    writer.add_document(std::vector<int32_t>(length, 1));
    starts.push_back(starts.back() + static_cast<int64_t>(length));
  }
  value_or_throw(writer.finish());
  const DocumentIndex index = value_or_throw(DocumentIndex::open(folder / "t"));
  ASSERT_TRUE(index.check());
  const int64_t tokens = starts.back();
  for (const auto& [first, end] :
       {std::pair{int64_t{0}, tokens}, {0, 1}, {tokens - 1, tokens}, {5, 2000}, {100, 102}}) {
    std::vector<int64_t> expected{first};
    for (const int64_t start : starts)
      if (start > expected.back() && start < end) expected.push_back(start);
    expected.push_back(end);
    EXPECT_EQ(index.bounds(first, end), expected) << first << " " << end;
  }
}

TEST(TokenFile, mutated_and_truncated_files_are_an_error_or_readable_never_a_crash) {
  const TemporaryFolder folder(parent_in_memory());
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
    const auto file = TokenFile::open(folder / "t");
    const auto index = checked_index(folder / "t");
    if (file) all_tokens(file.value());
    if (!file || !index) {
      ++refused;
      EXPECT_FALSE((file ? index.error() : file.error()).message.empty());
      continue;
    }
    ++opened;
    for (int64_t d = 0; d <= index.value().num_documents(); ++d) {
      const int64_t start = index.value().document_start(d);
      EXPECT_TRUE(start >= 0 && start <= file.value().num_tokens());
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 1000);
}

// Writes `text` at byte `at` of a file whose other bytes are holes.
void write_at_byte(const std::string& path, int64_t at, const std::string& text) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  ASSERT_TRUE(file.flush()) << path;
}

// The index of ten million documents, of which the file contains only the header and the ends of its arrays: a reader
// in between would find zeros.
TEST(TokenFile, is_opened_without_what_lies_between_the_ends_of_its_index) {
  const TemporaryFolder folder;
  constexpr int64_t kDocuments = 10'000'000, kHeader = 34;
  const auto number = [](int64_t value, size_t bytes) {
    return std::string(reinterpret_cast<const char*>(&value), bytes);
  };
  write_all(folder / "t.idx", kIdx.substr(0, 18) + number(kDocuments, 8) + number(kDocuments + 1, 8));
  write_all(folder / "t.bin", "");
  std::filesystem::resize_file(folder / "t.idx", kHeader + kDocuments * 20 + 8);
  std::filesystem::resize_file(folder / "t.bin", kDocuments * 10);  // five tokens per document
  write_at_byte(folder / "t.idx", kHeader + (kDocuments - 1) * 4, number(5, 4));
  write_at_byte(folder / "t.idx", kHeader + kDocuments * 4 + (kDocuments - 1) * 8, number((kDocuments - 1) * 10, 8));
  write_at_byte(folder / "t.idx", kHeader + kDocuments * 20, number(kDocuments, 8));

  const auto file = TokenFile::open(folder / "t");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file.value().num_documents(), kDocuments);
  EXPECT_EQ(file.value().num_tokens(), 5 * kDocuments);
  EXPECT_TRUE(file.value().fingerprint());
  const auto opened = DocumentIndex::open(folder / "t");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened.value().document_start(kDocuments), 5 * kDocuments);
  const auto index = checked_index(folder / "t");
  ASSERT_FALSE(index);
  EXPECT_NE(index.error().message.find("expected"), std::string::npos) << index.error().message;
}

TEST(TokenFile, the_fingerprint_depends_on_contents_and_not_on_paths) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::vector<std::vector<int32_t>>& documents, TokenType type) {
    auto writer = value_or_throw(TokenFileWriter::create(folder / name, type));
    for (const auto& document : documents) writer.add_document(document);
    value_or_throw(writer.finish());
  };
  const auto fingerprint = [&](const std::string& name) {
    return value_or_throw(value_or_throw(TokenFile::open(folder / name)).fingerprint());
  };
  // In a small file every byte matters.
  std::vector<std::vector<int32_t>> documents = {{1, 2, 3}, {4, 5}};
  write("a", documents, TokenType::kU16);
  write("same", documents, TokenType::kU16);
  EXPECT_EQ(fingerprint("a"), fingerprint("same"));
  write("wider", documents, TokenType::kI32);
  EXPECT_NE(fingerprint("a"), fingerprint("wider"));
  write("cut_elsewhere", {{1, 2}, {3}, {4, 5}}, TokenType::kU16);
  EXPECT_NE(fingerprint("a"), fingerprint("cut_elsewhere"));
  std::vector<int32_t> tokens(60'000);  // 120 kB: contiguous pages
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random_u64(1, i) % 60'000);
  write("small", {tokens}, TokenType::kU16);
  for (const size_t place : {size_t{0}, size_t{2047}, size_t{2048}, size_t{31'111}, tokens.size() - 1}) {
    std::vector<int32_t> changed = tokens;
    changed[place] += 1;
    write("changed", {changed}, TokenType::kU16);
    EXPECT_NE(fingerprint("small"), fingerprint("changed")) << "token " << place;
  }
  // In a large file one more token anywhere moves those after it, and an edit in the first or last page is detected.
  tokens.resize(1'000'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random_u64(2, i) % 60'000);
  write("large", {tokens}, TokenType::kU16);
  for (const size_t place : {size_t{0}, tokens.size() - 1}) {
    std::vector<int32_t> changed = tokens;
    changed[place] += 1;
    write("changed", {changed}, TokenType::kU16);
    EXPECT_NE(fingerprint("large"), fingerprint("changed")) << "token " << place;
  }
  std::vector<int32_t> moved = tokens;  // of equal length: one token is removed, another inserted 200,000 later
  moved.erase(moved.begin() + 400'001);
  moved.insert(moved.begin() + 600'001, 7);
  write("moved", {moved}, TokenType::kU16);
  EXPECT_NE(fingerprint("large"), fingerprint("moved"));
}

}  // namespace
}  // namespace tri
