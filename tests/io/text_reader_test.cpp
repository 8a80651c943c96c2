#include "io/tokens/text_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "io/base/random.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

// Returns lines of different lengths that hardly compress, so that streams are longer than the reader's buffers.
std::string many_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("{}{:x}\n", std::string(static_cast<size_t>(random_u64(1, static_cast<uint64_t>(i)) % 40), 'x'),
                        random_u64(2, static_cast<uint64_t>(i)));
  return text;
}

std::string all_of(const std::string& path) {
  TextReader reader = value_or_throw(TextReader::open(path));
  std::string text;
  value_or_throw(reader.rest(text));
  EXPECT_EQ(reader.consumed(), reader.file_bytes());
  return text;
}

TEST(TextReader, formats_follow_from_names) {
  for (const auto& [name, format] : {std::pair{"a.txt", TextFormat::kText},
                                     {"a.md", TextFormat::kText},
                                     {"dir.json/A.TXT", TextFormat::kText},
                                     {"a.jsonl", TextFormat::kJsonl},
                                     {"a.json", TextFormat::kJsonl},
                                     {"a.txt.ndjson", TextFormat::kJsonl},
                                     {"c4-train.00000.json.gz", TextFormat::kJsonl},
                                     {"a.jsonl.ZST", TextFormat::kJsonl},
                                     {"a.text.zst", TextFormat::kText}}) {
    const auto found = format_of(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found.value(), format) << name;
  }
  for (const char* name : {"a", "a.bin", "a.gz", "txt", "dir.txt/a", "a.json.bak"}) {
    const auto found = format_of(name);
    ASSERT_FALSE(found) << name;
    EXPECT_NE(found.error().message.find("--format text|lines|jsonl"), std::string::npos) << found.error().message;
    EXPECT_EQ(found.error().code, ExitCode::kUsage);
  }
  const auto parquet = format_of("a.parquet");
  ASSERT_FALSE(parquet);
  EXPECT_NE(parquet.error().message.find("convert it to JSON lines"), std::string::npos) << parquet.error().message;
}

TEST(TextReader, packed_text_is_the_text) {
  const TemporaryFolder folder;
  const std::string text = many_lines(60000), half = text.substr(0, text.size() / 2), rest = text.substr(half.size());
  ASSERT_GT(text.size(), size_t{1} << 20);
  const std::string zeros(5 << 20, 'z');  // a few bytes of input become many bytes of output
  const std::tuple<const char*, std::string, std::string> files[] = {
      {"plain.txt", text, text},
      {"empty.txt", "", ""},
      {"short.txt", "x", "x"},
      {"one.gz", gzip(text), text},
      {"members.gz", gzip(half) + gzip("") + gzip(rest), text},
      {"zeros.gz", gzip(zeros), zeros},
      {"nothing.gz", gzip(""), ""},
      {"gzip_by_another_name.txt", gzip(text), text},
      {"one.zst", zstd(text), text},
      {"frames.zst", zstd(half) + zstd("") + zstd(rest), text},
      {"zeros.zst", zstd(zeros), zeros},
      {"skippable.zst", std::string("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12) + zstd(text), text}};
  for (const auto& [name, bytes, expected] : files) {
    write_all(folder / name, bytes);
    EXPECT_TRUE(all_of(folder / name) == expected) << name;
    EXPECT_EQ(value_or_throw(TextReader::open(folder / name)).packed(), bytes != expected) << name;
  }
}

TEST(TextReader, blocks_are_whole_lines_and_together_the_text) {
  const TemporaryFolder folder;
  for (const std::string& text : {many_lines(3000), std::string("a\n\n\nb"), std::string("\n"), std::string("long")}) {
    write_all(folder / "a.txt", text);
    write_all(folder / "a.gz", gzip(text));
    for (const char* name : {"a.txt", "a.gz"})
      for (const int64_t bytes : {1, 2, 50, 1000, 1 << 20}) {
        TextReader reader = value_or_throw(TextReader::open(folder / name));
        std::string together, block;
        while (true) {
          value_or_throw(reader.next_lines(bytes, block));
          if (block.empty()) break;
          together += block;
          if (together.size() == text.size()) continue;
          EXPECT_EQ(block.back(), '\n') << name << " " << bytes;
          EXPECT_GE(static_cast<int64_t>(block.size()), bytes);
          // Not one line more than necessary.
          const size_t before = block.substr(0, block.size() - 1).rfind('\n');
          EXPECT_LT(before == std::string::npos ? 0 : static_cast<int64_t>(before) + 1, bytes);
        }
        EXPECT_TRUE(together == text) << name << " " << bytes;
      }
  }
}

TEST(TextReader, damaged_and_truncated_streams_are_errors) {
  const TemporaryFolder folder;
  const std::string text = many_lines(200);
  const auto why = [&](const std::string& name, const std::string& bytes) -> std::string {
    write_all(folder / name, bytes);
    auto reader = TextReader::open(folder / name);
    if (!reader) return reader.error().message;
    std::string out;
    const auto got = reader.value().rest(out);
    return got ? "" : got.error().message;
  };
  for (const auto& [name, bytes] : {std::pair{"a.txt.gz", gzip(text)}, {"a.txt.zst", zstd(text)}}) {
    for (size_t size = 0; size < bytes.size(); size += size < 40 ? 1 : 61) {
      const std::string message = why(name, bytes.substr(0, size));
      EXPECT_EQ(message.rfind(folder / name, 0), 0u) << name << " of " << size << ": \"" << message << '"';
    }
    EXPECT_NE(why(name, bytes.substr(0, bytes.size() - 3)).find("truncated"), std::string::npos);
    EXPECT_NE(why(name, bytes + "no stream").find("damaged"), std::string::npos);
    EXPECT_NE(why(name, text).find("although its name says so"), std::string::npos);
  }
  std::string flipped = gzip(text);
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 4);
  EXPECT_NE(why("a.gz", flipped).find("damaged"), std::string::npos);
  EXPECT_NE(why("a.gz", flipped), "");
  EXPECT_FALSE(TextReader::open(folder / "missing.txt"));
}

TEST(TextReader, a_line_and_a_document_beyond_the_limit_are_refused_by_name) {
  const TemporaryFolder folder;
  const std::string line(1 << 20, 'a');
  for (const auto& [name, bytes] :
       {std::pair{"a.txt.zst", zstd(line)}, {"a.jsonl.gz", gzip("x\n" + line)}, {"a.txt", line}}) {
    write_all(folder / name, bytes);
    TextReader lines = value_or_throw(TextReader::open(folder / name, 1 << 19));
    std::string out;
    Result<void> got;
    while ((got = lines.next_lines(1, out)) && !out.empty()) {
    }
    ASSERT_FALSE(got) << name;
    EXPECT_EQ(got.error().code, ExitCode::kFile);
    EXPECT_EQ(got.error().message.rfind(folder / name, 0), 0u) << got.error().message;
    EXPECT_NE(got.error().message.find("a line is longer than"), std::string::npos) << got.error().message;
    TextReader document = value_or_throw(TextReader::open(folder / name, 1 << 19));
    got = document.rest(out);
    ASSERT_FALSE(got) << name;
    EXPECT_NE(got.error().message.find("the document is longer than"), std::string::npos) << got.error().message;
    TextReader whole = value_or_throw(TextReader::open(folder / name, 1 << 21));
    EXPECT_TRUE(whole.rest(out)) << name;
  }
  // Together many lines may be longer.
  write_all(folder / "many.txt", many_lines(3000));
  TextReader reader = value_or_throw(TextReader::open(folder / "many.txt", 1000));
  size_t bytes = 0;
  for (std::string block; value_or_throw(reader.next_lines(1, block)), !block.empty();) bytes += block.size();
  EXPECT_EQ(bytes, many_lines(3000).size());
}

// Counts faults by decoding to code points, whereas faults_of compares bytes with ranges.
int64_t faults_by_decoding(const std::string& text) {
  int64_t faults = 0;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    bool good = length > 0 && at + length <= text.size();
    uint32_t point = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (size_t i = 1; good && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      good = next >> 6 == 2;
      point = point << 6 | (next & 0x3Fu);
    }
    const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};  // 1: NUL is a fault
    good = good && point >= least[length] && point <= 0x10FFFF && !(point >= 0xD800 && point <= 0xDFFF);
    faults += !good;
    at += good ? length : 1;
  }
  return faults;
}

TEST(TextFaults, are_what_decoding_does_not_take) {
  EXPECT_EQ(faults_of("").faults, 0);
  EXPECT_EQ(faults_of("plain text, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80\n").faults, 0);
  const TextFaults nul = faults_of(std::string_view("0123456789\0x\0", 13));
  EXPECT_EQ(nul.faults, 2);
  EXPECT_EQ(nul.first, 10);
  EXPECT_EQ(nul.bytes, 13);
  for (const auto& [text, faults] : {std::pair{"\xc0\x80", 2},  // an overlong NUL
                                     {"\xed\xa0\x80", 3},       // a surrogate
                                     {"\xf4\x90\x80\x80", 4},   // above U+10FFFF
                                     {"caf\xe9 au lait", 1},    // Latin-1
                                     {"\xe2\x82", 2}})          // truncated
    EXPECT_EQ(faults_of(text).faults, faults) << text;
  // Bytes near the borders of all ranges, between runs of ASCII for the fast path.
  constexpr unsigned char kBytes[] = {0x00, 'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                                      0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5};
  uint64_t num_draws = 0;
  int64_t clean = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t parts = random_u64(3, num_draws++) % 5; parts > 0; --parts) {
      text.append(random_u64(3, num_draws++) % 12, 'b');
      for (uint64_t bytes = random_u64(3, num_draws++) % 5; bytes > 0; --bytes)
        text += static_cast<char>(kBytes[random_u64(3, num_draws++) % std::size(kBytes)]);
    }
    const int64_t expected = faults_by_decoding(text);
    ASSERT_EQ(faults_of(text).faults, expected) << round;
    clean += expected == 0;
  }
  EXPECT_GT(clean, 1000);
}

TEST(TextCheck, refuses_more_than_its_share_and_names_the_first_place) {
  const auto said = [](const Result<void>& result) { return result ? "" : result.error().message; };
  TextCheck few("a.txt");
  EXPECT_TRUE(few.add({.bytes = 10'000, .faults = 4, .first = 7}));
  EXPECT_TRUE(few.add({.bytes = 10'000, .faults = 16, .first = 0}));
  EXPECT_TRUE(few.finish()) << "20 of 20,000 is the limit";
  EXPECT_EQ(few.faults(), 20);
  EXPECT_TRUE(few.add({.bytes = 10, .faults = 1, .first = 0})) << "the file may go on";
  EXPECT_EQ(
      said(few.finish()),
      "a.txt: not UTF-8 text: of its first 20010 bytes (decompressed), 21 are NUL or not UTF-8 (0.1 %; at most 0.1 % "
      "are accepted), the first at offset 7; convert it, or give another file");
  TextCheck late("b.txt");
  EXPECT_TRUE(late.add({.bytes = 1000, .faults = 0, .first = -1}));
  const std::string refused = said(late.add({.bytes = 1 << 20, .faults = 1 << 19, .first = 3}));
  EXPECT_NE(refused.find("the first at offset 1003"), std::string::npos) << refused;
  EXPECT_TRUE(TextCheck("c.txt").finish()) << "nothing has no faults";
}

}  // namespace
}  // namespace tri
