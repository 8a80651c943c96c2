// Text of files that `data prepare` takes: what their names say of their format, and their bytes, unpacked and checked.
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
  kLines,  // a line is a document; empty lines are none
  kJsonl,  // a line is a JSON object; the document is its text field
};

template <>
struct EnumNames<TextFormat> {
  static constexpr std::array table{std::pair{TextFormat::kText, std::string_view("text")},
                                    std::pair{TextFormat::kLines, std::string_view("lines")},
                                    std::pair{TextFormat::kJsonl, std::string_view("jsonl")}};
};

// By the extension, whatever its case, after .gz or .zst is taken away: .txt .text .md are kText; .jsonl .ndjson .json
// (an object a line, as C4 has it) are kJsonl. Error naming --format for others.
Result<TextFormat> format_of(const std::string& path);

// "UTF-16 (little-endian)" and the like when `text` begins with the byte order mark of an encoding other than UTF-8;
// empty: it does not.
std::string_view foreign_encoding(std::string_view text);

// What in a text is no text. Bytes that are NUL or belong to no well-formed UTF-8 sequence (Unicode 15, table 3-7: no
// overlong forms, no surrogates) are faults.
struct TextFaults {
  int64_t bytes = 0;   // looked at
  int64_t faults = 0;  // of them
  int64_t first = -1;  // offset of the first fault; -1: none
};
TextFaults faults_of(std::string_view text);

// Adds up what the blocks of a file hold, in order, and says when it is too much to be text.
class TextCheck {
 public:
  // Of a text's bytes, so many may be faults: a broken character here and there, but not Latin-1, UTF-16 or a binary
  // file.
  static constexpr double kMaxShare = 1e-3;

  explicit TextCheck(std::string path) : path_(std::move(path)) {}

  // The next block. Error once the faults are more than kMaxShare of what came so far and of 1 MiB, which a short
  // file's end settles.
  Result<void> add(const TextFaults& block);
  // Behind the last block. Error naming file, offset of the first fault and share when they are more than kMaxShare.
  Result<void> finish() const;

  int64_t faults() const { return total_.faults; }

 private:
  Error refusal() const;

  std::string path_;
  TextFaults total_;
};

// The text of one file, unpacked when its first bytes are those of gzip (RFC 1952) or Zstandard (RFC 8878), whatever
// its name; several members or frames one behind the other are one text. A UTF-8 byte order mark at its
// beginning is dropped. Memory: a block, and the codec's window.
class TextReader {
 public:
  // A line, and a file that is one document, are held in memory whole: longer ones are refused. A small packed file may
  // unpack to any size.
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  // Error when the file can't be read, or is named .gz or .zst and is not. `most`: bytes that a line, or the rest of
  // the text, may have.
  static Result<TextReader> open(const std::string& path, int64_t most = kMostBytes);
  TextReader(TextReader&&) noexcept;
  ~TextReader();

  // Replaces `block` by the next whole lines, at least `bytes` of them unless the text ends; the last line may lack its
  // newline. Empty at the end. Error when the file can't be read, is damaged, or ends within a compressed stream; or
  // when a line is too long.
  Result<void> next_lines(int64_t bytes, std::string& block);
  // Replaces `block` by all that is left. Error as above, and when that is too long.
  Result<void> rest(std::string& block);

  bool packed() const;                                    // by gzip or Zstandard
  bool had_byte_order_mark() const { return had_mark_; }  // known once something was read
  int64_t file_bytes() const;                             // as it is stored
  int64_t consumed() const;                               // of them, so far

  class Source;  // the file, unpacked

 private:
  TextReader(std::unique_ptr<Source> source, int64_t most);
  Result<void> begin();  // before the first bytes are handed out
  Result<bool> more(std::string& block, const char* what);

  std::unique_ptr<Source> source_;
  size_t most_ = 0;
  bool begun_ = false;
  bool had_mark_ = false;
  std::string ahead_;  // read, but not handed out: less than a line behind the last block
};

}  // namespace tri
