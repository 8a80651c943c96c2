// Safetensors files (Hugging Face): u64 length N of the header, N bytes of JSON {"name": {"dtype", "shape",
// "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}, then the tensors' bytes without gaps,
// little-endian, row-major; offsets count from the end of the header.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/file.h"
#include "io/base/stored_type.h"

namespace tri {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // empty: one element
  // For a dtype without a StoredType: its name, such as BOOL, and the bytes of data. `type` is then meaningless.
  std::string other_dtype = {};
  int64_t other_bytes = 0;

  bool is_readable() const { return other_dtype.empty(); }
  std::string dtype() const;  // in the format's spelling: "BF16"
  int64_t bytes() const;
};

// A checked, memory-mapped file. Safe for concurrent use.
class SafetensorsFile {
 public:
  // Checks the whole structure; fails with kFile. Lists tensors of any dtype: the caller decides whether an unreadable
  // one matters.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of the data
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null: there is none

  // Returns the bytes of an entry of entries(), unaligned. Valid as long as the file.
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;

 private:
  std::string path_;
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<int64_t> begins_;  // of the entries, in the file
  SafetensorsMetadata metadata_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Writes the given entries in sequence. Nothing appears at `path` before finish(). Not thread-safe.
class SafetensorsWriter {
 public:
  // Fails if names repeat or are not UTF-8, or if the file cannot be created. Entries must be readable.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                          const SafetensorsMetadata& metadata = {});

  // Writes the next `bytes` of entry `name`. Requires entries in order, each completed before the next.
  void write(std::string_view name, const void* data, int64_t bytes);

  Result<void> finish();  // requires all entries to be complete

 private:
  SafetensorsWriter(std::vector<SafetensorsEntry> entries, AtomicFile file)
      : entries_(std::move(entries)), file_(std::move(file)) {}
  void skip_complete();

  std::vector<SafetensorsEntry> entries_;
  AtomicFile file_;
  size_t at_ = 0;     // the entry being written
  int64_t done_ = 0;  // its bytes so far
};

}  // namespace tri
