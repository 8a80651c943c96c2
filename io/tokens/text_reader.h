// Reads the text files of `data prepare`: their format from their names, and their bytes, unpacked and checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/base/enum_names.h"
#include "io/base/error.h"

namespace tri {

enum class TextFormat {
  kText,   // a file is a document
  kLines,  // a line is a document; empty lines are skipped
  kJsonl,  // a line is a JSON object; the document is its text field
};

template <>
struct EnumNames<TextFormat> {
  static constexpr std::array table{std::pair{TextFormat::kText, std::string_view("text")},
                                    std::pair{TextFormat::kLines, std::string_view("lines")},
                                    std::pair{TextFormat::kJsonl, std::string_view("jsonl")}};
};

// Returns the format for the extension, in any case, without .gz or .zst: .txt .text .md are kText; .jsonl .ndjson
// .json (one object per line, as in C4) are kJsonl. Fails for others, naming --format.
Result<TextFormat> format_of(const std::string& path);

// Returns "UTF-16 (little-endian)" or similar if `text` begins with the byte order mark of an encoding other than
// UTF-8, else "".
std::string_view foreign_encoding(std::string_view text);

// Counts faults: bytes that are NUL or belong to no well-formed UTF-8 sequence (Unicode 15, table 3-7: no overlong
// forms, no surrogates).
struct TextFaults {
  int64_t bytes = 0;   // checked
  int64_t faults = 0;  // among them
  int64_t first = -1;  // offset of the first fault; -1: none
};
TextFaults faults_of(std::string_view text);

// Adds up the faults of a file's blocks, in order, and detects files that are not text.
class TextCheck {
 public:
  // The greatest share of faults in a text: allows a broken character here and there, but not Latin-1, UTF-16 or a
  // binary file.
  static constexpr double kMaxShare = 1e-3;

  explicit TextCheck(std::string path) : path_(std::move(path)) {}

  // Adds the next block. Fails once the faults are more than kMaxShare of the text so far and of 1 MiB; finish()
  // decides for short files.
  Result<void> add(const TextFaults& block);
  // Call after the last block. Fails if the faults are more than kMaxShare, naming file, offset of the first fault and
  // share.
  Result<void> finish() const;

  int64_t faults() const { return total_.faults; }

 private:
  Error refusal() const;

  std::string path_;
  TextFaults total_;
};

// The text of one file, unpacked if its first bytes are those of gzip (RFC 1952) or Zstandard (RFC 8878), whatever its
// name; several members or frames in sequence are one text. Drops a UTF-8 byte order mark at its beginning. Memory: a
// block, and the codec's window.
class TextReader {
 public:
  // A line, and a file that is one document, are held in memory whole: longer ones are refused, since a small packed
  // file may unpack to any size.
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  // Fails if the file cannot be read, or is named .gz or .zst and is not. `most`: the most bytes of a line, or of the
  // rest of the text.
  static Result<TextReader> open(const std::string& path, int64_t most = kMostBytes);
  TextReader(TextReader&&) noexcept;
  ~TextReader();

  // Replaces `block` by the next whole lines, at least `bytes` bytes unless the text ends; the last line may lack its
  // newline. Empty at the end. Fails if the file cannot be read, is damaged, or ends within a compressed stream, or if
  // a line is too long.
  Result<void> next_lines(int64_t bytes, std::string& block);
  // Replaces `block` by the rest of the text. Fails as above, and if the rest is too long.
  Result<void> rest(std::string& block);

  bool packed() const;                                    // by gzip or Zstandard
  bool had_byte_order_mark() const { return had_mark_; }  // known after the first read
  int64_t file_bytes() const;                             // as stored
  int64_t consumed() const;                               // of file_bytes(), so far

  class Source;  // the file, unpacked

 private:
  TextReader(std::unique_ptr<Source> source, int64_t most);
  Result<void> begin();  // before the first read
  Result<bool> more(std::string& block, const char* what);

  std::unique_ptr<Source> source_;
  size_t most_ = 0;
  bool begun_ = false;
  bool had_mark_ = false;
  std::string ahead_;  // read, but not returned: less than a line after the last block
};

}  // namespace tri
