#include "io/safetensors.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>

#include "io/base/json.h"

namespace tri {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, read in place");

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
constexpr const char* kMetadata = "__metadata__";
constexpr std::pair<StoredType, std::string_view> kTypes[] = {{StoredType::kF32, "F32"}, {StoredType::kBf16, "BF16"},
                                                              {StoredType::kF16, "F16"}, {StoredType::kI64, "I64"},
                                                              {StoredType::kI32, "I32"}, {StoredType::kU8, "U8"}};

// Bytes per element of the types that have no StoredType, without types smaller than a byte.
constexpr std::pair<std::string_view, int64_t> kOtherTypes[] = {
    {"BOOL", 1}, {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2},
    {"U16", 2},  {"U32", 4}, {"F64", 8},     {"U64", 8},     {"C64", 8}};

std::string_view type_name(StoredType type) {
  for (const auto& [candidate, name] : kTypes)
    if (candidate == type) return name;
  return "?";
}

std::optional<StoredType> type_of(std::string_view text) {
  for (const auto& [type, name] : kTypes)
    if (name == text) return type;
  return std::nullopt;
}

// Returns the bytes per element; none if the type is unknown or its elements are smaller than a byte.
std::optional<int64_t> bytes_of(std::string_view dtype) {
  if (const auto type = type_of(dtype)) return element_bytes(*type);
  for (const auto& [name, bytes] : kOtherTypes)
    if (name == dtype) return bytes;
  return std::nullopt;
}

// Returns the bytes of a tensor; none if a dim is negative or the product too large.
std::optional<int64_t> checked_bytes(int64_t element, const std::vector<int64_t>& shape) {
  int64_t bytes = element;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  return bytes;
}

// Returns a list of `count` (any: -1) integers; none if they do not fit.
std::optional<std::vector<int64_t>> integers(const Json& json, int count) {
  if (!json.is_array() || (count >= 0 && json.size() != static_cast<size_t>(count))) return std::nullopt;
  std::vector<int64_t> values;
  for (const Json& value : json) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
    values.push_back(value.get<int64_t>());
  }
  return values;
}

// JSON silently keeps only one of several equal keys; here they are an error.
Result<Json> parse_header(const std::string& path, std::string_view text) {
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& key) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(key.get<std::string>()).second)
      repeated = key.get<std::string>();
    return true;
  };
  try {
    Json header = parse_json<Json>(text, watch);
    if (!header.is_object())
      return file_error("{}: its header is a JSON {}, expected an object", path, header.type_name());
    if (!repeated.empty()) return file_error("{}: tensor {} is listed twice", path, repeated);
    return header;
  } catch (const Json::exception& problem) {
    return file_error("{}: its header is not valid JSON: {}", path, problem.what());
  }
}

struct Placed {
  SafetensorsEntry entry;
  int64_t begin, end;
};

Result<Placed> placed_of(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets"))
    return file_error("{}: tensor {}: expected dtype, shape and data_offsets", path, name);
  const Json& dtype = json["dtype"];
  if (!dtype.is_string()) return file_error("{}: tensor {}: dtype {} is not text", path, name, dtype.dump());
  const auto element = bytes_of(dtype.get<std::string>());
  const auto shape = integers(json["shape"], -1);
  const auto bytes = shape ? checked_bytes(element.value_or(1), *shape) : std::nullopt;
  if (!bytes) return file_error("{}: tensor {}: shape {}", path, name, json["shape"].dump());
  const auto offsets = integers(json["data_offsets"], 2);
  if (!offsets || (*offsets)[0] > (*offsets)[1])
    return file_error("{}: tensor {}: data_offsets {}", path, name, json["data_offsets"].dump());
  if (element && (*offsets)[1] - (*offsets)[0] != *bytes)
    return file_error("{}: tensor {}: {} bytes of data, but {} {} take {}", path, name, (*offsets)[1] - (*offsets)[0],
                      dtype.get<std::string>(), json["shape"].dump(), *bytes);
  SafetensorsEntry entry{.name = name, .shape = *shape};
  if (const auto type = type_of(dtype.get<std::string>()); type) {
    entry.type = *type;
  } else {
    entry.other_dtype = dtype.get<std::string>();
    entry.other_bytes = (*offsets)[1] - (*offsets)[0];
  }
  return Placed{std::move(entry), (*offsets)[0], (*offsets)[1]};
}

}  // namespace

std::string SafetensorsEntry::dtype() const { return is_readable() ? std::string(type_name(type)) : other_dtype; }

int64_t SafetensorsEntry::bytes() const {
  if (!is_readable()) return other_bytes;
  const auto bytes = checked_bytes(element_bytes(type), shape);
  TRI_REQUIRE(bytes.has_value(), "tensor {}: shape [{}]", name, fmt::join(shape, ", "));
  return *bytes;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = std::move(mapped).value();
  const std::string_view text = file.file_.text();
  uint64_t length = 0;
  if (text.size() < sizeof length)
    return file_error("{}: {} bytes, too short for the length of a header; truncated", path, text.size());
  std::memcpy(&length, text.data(), sizeof length);
  if (length > kMaxHeaderBytes)
    return file_error("{}: a header of {} bytes, at most {} are allowed; not a safetensors file", path, length,
                      kMaxHeaderBytes);
  if (length > text.size() - sizeof length)
    return file_error("{}: {} bytes, too short for a header of {}; truncated", path, text.size(), length);
  auto header = parse_header(path, text.substr(sizeof length, length));
  if (!header) return header.error();

  std::vector<Placed> tensors;
  for (const auto& [name, json] : header.value().items()) {
    if (name == kMetadata) {
      if (!json.is_object()) return file_error("{}: {} is not an object", path, kMetadata);
      for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) return file_error("{}: {}: {} is not text", path, kMetadata, key);
        file.metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    auto placed = placed_of(path, name, json);
    if (!placed) return placed.error();
    tensors.push_back(std::move(placed).value());
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const auto base = static_cast<int64_t>(sizeof length + length);
  int64_t end = 0;
  for (Placed& tensor : tensors) {
    if (tensor.begin != end)
      return file_error("{}: tensor {} begins at byte {} of the data, expected {}", path, tensor.entry.name,
                        tensor.begin, end);
    end = tensor.end;
    file.by_name_[tensor.entry.name] = file.entries_.size();
    file.begins_.push_back(base + tensor.begin);
    file.entries_.push_back(std::move(tensor.entry));
  }
  if (const int64_t data = static_cast<int64_t>(text.size()) - base; data != end)
    return file_error("{}: {} bytes of data, but its tensors take {}; truncated or damaged", path, data, end);
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  const auto at = static_cast<size_t>(&entry - entries_.data());
  TRI_REQUIRE(at < entries_.size(), "{}: {} is not one of its entries", path_, entry.name);
  return file_.bytes().subspan(static_cast<size_t>(begins_[at]), static_cast<size_t>(entry.bytes()));
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                                    const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    TRI_REQUIRE(entry.is_readable(), "tensor {} is {}", entry.name, entry.other_dtype);
    if (entry.name == kMetadata || header.contains(entry.name))
      return file_error("{}: tensor {} {}", path, entry.name,
                        entry.name == kMetadata ? "has a reserved name" : "is given twice");
    header[entry.name] = {
        {"dtype", type_name(entry.type)}, {"shape", entry.shape}, {"data_offsets", {at, at + entry.bytes()}}};
    at += entry.bytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& problem) {
    return file_error("{}: {}", path, problem.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
  const uint64_t length = text.size();
  if (length > kMaxHeaderBytes)
    return file_error("{}: a header of {} bytes, at most {}", path, length, kMaxHeaderBytes);
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  file.value().write(&length, sizeof length);
  file.value().write(text.data(), text.size());
  SafetensorsWriter writer(std::move(entries), std::move(file).value());
  writer.skip_complete();
  return writer;
}

void SafetensorsWriter::skip_complete() {
  while (at_ < entries_.size() && done_ == entries_[at_].bytes()) {
    ++at_;
    done_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, const void* data, int64_t bytes) {
  if (bytes == 0) return;
  TRI_REQUIRE(at_ < entries_.size() && entries_[at_].name == name, "tensor {}, expected {}", name,
              at_ < entries_.size() ? entries_[at_].name : "no more");
  TRI_REQUIRE(bytes > 0 && bytes <= entries_[at_].bytes() - done_, "tensor {}: {} bytes after {} of {}", name, bytes,
              done_, entries_[at_].bytes());
  file_.write(data, static_cast<size_t>(bytes));
  done_ += bytes;
  skip_complete();
}

Result<void> SafetensorsWriter::finish() {
  TRI_REQUIRE(at_ == entries_.size(), "tensor {} has {} of {} bytes", entries_[at_].name, done_, entries_[at_].bytes());
  return file_.commit();
}

}  // namespace tri
