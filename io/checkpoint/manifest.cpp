#include "io/checkpoint/manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/base/json.h"

namespace tri {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr int kMaxDims = 32;  // H5S_MAX_RANK
// The manifest's checksum is computed over its text with this placeholder in its place.
constexpr std::string_view kNoChecksum = "0000000000000000";
constexpr std::string_view kChecksumKey = "\n\"checksum\": \"";

// Keeps keys in insertion order.
using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const FileRecord& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksum", hex64(file.checksum)}};
}

OrderedJson json_of(const StoredShard& shard) {
  return {{"file", shard.file},          {"dataset", shard.dataset},      {"offset", shard.offset},
          {"start", shard.region.start}, {"extent", shard.region.extent}, {"checksum", hex64(shard.checksum)}};
}

// Formats a list with one item per line, for people and line tools. These functions throw Json::exception on text
// that is not UTF-8.
template <class Item, class ToText>
std::string list_text(const std::vector<Item>& items, ToText to_text) {
  std::string text = "[";
  for (const Item& item : items) text += (text.size() == 1 ? "\n " : ",\n ") + to_text(item);
  return text + "]";
}

std::string files_text(const std::vector<FileRecord>& files) {
  return list_text(files, [](const FileRecord& file) { return json_of(file).dump(); });
}

std::string tensors_text(const std::vector<TensorRecord>& tensors) {
  return list_text(tensors, [](const TensorRecord& tensor) {
    const OrderedJson head = {{"name", tensor.name}, {"type", enum_name(tensor.type)}, {"shape", tensor.shape}};
    std::string text = head.dump();
    text.pop_back();  // the object continues
    return text + ",\"pieces\":" +
           list_text(tensor.shards, [](const StoredShard& shard) { return " " + json_of(shard).dump(); }) + "}";
  });
}

// Json::get and these functions check the types of fields; both throw.
[[noreturn]] void refuse(const std::string& what) { throw Fatal(ExitCode::kFile, what); }

int64_t integer_of(const Json& json) {
  if (!json.is_number_integer()) refuse(fmt::format("expected an integer, found {}", json.dump().substr(0, 40)));
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    refuse(fmt::format("{} is too large", json.dump()));
  return json.get<int64_t>();
}

Coordinates coordinates_of(const Json& json) {
  if (!json.is_array()) refuse(fmt::format("expected a list of integers, found a {}", json.type_name()));
  Coordinates values;
  for (const Json& value : json) values.push_back(integer_of(value));
  return values;
}

uint64_t checksum_of(const Json& json) {
  const auto value = parse_hex64(json.get<std::string>());
  if (!value) refuse(fmt::format("checksum {} is not 16 hexadecimal digits", json.dump()));
  return *value;
}

FileRecord file_of(const Json& json) {
  return {json.at("name").get<std::string>(), integer_of(json.at("bytes")), checksum_of(json.at("checksum"))};
}

TensorRecord tensor_of(const Json& json) {
  TensorRecord tensor{.name = json.at("name").get<std::string>(), .shape = coordinates_of(json.at("shape"))};
  const auto type = enum_from_name<StoredType>(json.at("type").get<std::string>());
  if (!type)
    refuse(fmt::format("tensor {}: type {}, expected {}", tensor.name, json.at("type").dump(),
                       enum_choices<StoredType>()));
  tensor.type = *type;
  for (const Json& shard : json.at("pieces"))
    tensor.shards.push_back({.file = shard.at("file").get<std::string>(),
                             .dataset = shard.at("dataset").get<std::string>(),
                             .offset = integer_of(shard.at("offset")),
                             .region = {coordinates_of(shard.at("start")), coordinates_of(shard.at("extent"))},
                             .checksum = checksum_of(shard.at("checksum"))});
  return tensor;
}

struct OtherFormat : Fatal {
  using Fatal::Fatal;
};

void check_format(const Json& json) {
  if (const int64_t format = integer_of(json); format != kFormat)
    throw OtherFormat(ExitCode::kFile, fmt::format("the format is {}, but this program reads {}, because another "
                                                   "version of trireme wrote it; use that version",
                                                   format, kFormat));
}

// Turns each tensor into a record as soon as it is parsed, and drops its JSON: the JSON of all tensors takes eight
// times the bytes of the text.
Manifest manifest_of(std::string_view text) {
  Manifest manifest;
  std::string key;  // the last one of the outermost object
  const Json json = parse_json<Json>(text, [&](int depth, Json::parse_event_t event, Json& part) {
    if (depth == 1 && event == Json::parse_event_t::key) key = part.get<std::string>();
    if (depth == 1 && event == Json::parse_event_t::value && key == "format") check_format(part);
    if (depth != 2 || event != Json::parse_event_t::object_end || key != "tensors") return true;
    manifest.tensors.push_back(tensor_of(part));
    return false;
  });
  check_format(json.at("format"));
  manifest.attempt = json.at("attempt").get<std::string>();
  manifest.step = integer_of(json.at("step"));
  manifest.info.texts = json.at("texts").get<std::map<std::string, std::string>>();
  for (const auto& [name, value] : json.at("numbers").items()) manifest.info.numbers[name] = integer_of(value);
  if (const auto lists = json.find("lists"); lists != json.end())  // absent from manifests of earlier versions
    for (const auto& [name, values] : lists->items()) manifest.info.lists[name] = values.get<std::vector<float>>();
  for (const Json& file : json.at("files")) manifest.files.push_back(file_of(file));
  if (const Json& left = json.at("tensors"); !left.is_array() || !left.empty()) refuse("expected a list of tensors");
  return manifest;
}

Result<Manifest> parsed(std::string_view text, const std::string& path) {
  try {
    return manifest_of(text);
  } catch (const Json::exception& problem) {
    return file_error("{}: {}", path, problem.what());
  } catch (const OtherFormat& problem) {
    return Error{fmt::format("{}: {}", path, problem.what()), ExitCode::kFile, kOtherFormat};
  } catch (const Fatal& problem) {
    return file_error("{}: {}", path, problem.what());
  }
}

// Only shards that overlap in one dim can overlap at all. The dim in which the shards begin at the most different
// places leaves the fewest candidate pairs.
Result<void> check_cover(const TensorRecord& tensor) {
  if (tensor.shape.empty() || tensor.shape.size() > kMaxDims)
    return file_error("tensor {}: it has {} dims, expected 1 to {}", tensor.name, tensor.shape.size(), kMaxDims);
  int64_t total = element_bytes(tensor.type);
  for (const int64_t size : tensor.shape)
    if (size < 1 || __builtin_mul_overflow(total, size, &total))
      return file_error("tensor {}: the shape {} is invalid", tensor.name, to_string(tensor.shape));
  total /= element_bytes(tensor.type);

  int64_t covered = 0;
  for (const StoredShard& shard : tensor.shards) {
    if (!inside(shard.region, tensor.shape))
      return file_error("tensor {}: shard {} of {} is not inside shape {}", tensor.name, to_string(shard.region),
                        shard.file, to_string(tensor.shape));
    if (__builtin_add_overflow(covered, num_elements(shard.region.extent), &covered)) covered = -1;
  }
  size_t dim = 0, most = 0;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    std::set<int64_t> starts;
    for (const StoredShard& shard : tensor.shards) starts.insert(shard.region.start[d]);
    if (starts.size() > most) most = starts.size(), dim = d;
  }
  std::vector<const StoredShard*> sorted;
  for (const StoredShard& shard : tensor.shards) sorted.push_back(&shard);
  std::sort(sorted.begin(), sorted.end(),
            [dim](const auto* a, const auto* b) { return a->region.start[dim] < b->region.start[dim]; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Region& region = sorted[i]->region;
    for (size_t k = i + 1; k < sorted.size(); ++k) {
      if (sorted[k]->region.start[dim] >= region.start[dim] + region.extent[dim]) break;
      if (intersect(region, sorted[k]->region))
        return file_error("tensor {}: shards {} of {} and {} of {} overlap", tensor.name, to_string(region),
                          sorted[i]->file, to_string(sorted[k]->region), sorted[k]->file);
    }
  }
  if (covered != total)
    return file_error("tensor {}: its {} shards contain {} of {} elements; the shards of a writer are missing",
                      tensor.name, tensor.shards.size(), covered, total);
  return {};
}

struct Extent {  // of a shard in its file
  int64_t begin, end;
  const TensorRecord* tensor;
};

Result<void> check_places(const Manifest& manifest) {
  std::map<std::string_view, std::pair<int64_t, std::vector<Extent>>> files;
  for (const FileRecord& file : manifest.files) {
    if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos || file.bytes < 0)
      return file_error("file \"{}\" of {} bytes: a file of this folder cannot have this name or size", file.name,
                        file.bytes);
    if (!files.try_emplace(file.name, file.bytes, std::vector<Extent>()).second)
      return file_error("file {} is listed twice", file.name);
  }
  for (const TensorRecord& tensor : manifest.tensors)
    for (const StoredShard& shard : tensor.shards) {
      const auto file = files.find(shard.file);
      if (file == files.end())
        return file_error("tensor {}: its shard's file {} is not listed", tensor.name, shard.file);
      const int64_t bytes = num_elements(shard.region.extent) * element_bytes(tensor.type);
      if (shard.offset < 0 || shard.offset > file->second.first || bytes > file->second.first - shard.offset)
        return file_error("tensor {}: {} bytes at {} are not inside {} of {} bytes", tensor.name, bytes, shard.offset,
                          shard.file, file->second.first);
      file->second.second.push_back({shard.offset, shard.offset + bytes, &tensor});
    }
  for (auto& [name, entry] : files) {
    std::vector<Extent>& extents = entry.second;
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < extents.size(); ++i)
      if (extents[i].begin < extents[i - 1].end)
        return file_error("tensors {} and {} share bytes of {}", extents[i - 1].tensor->name, extents[i].tensor->name,
                          name);
  }
  return {};
}

}  // namespace

Result<void> Manifest::add(const ShardRecord& shard) {
  files.push_back(shard.file);
  for (const TensorRecord& part : shard.tensors) {
    const auto at = std::lower_bound(tensors.begin(), tensors.end(), part.name,
                                     [](const TensorRecord& a, const std::string& name) { return a.name < name; });
    if (at == tensors.end() || at->name != part.name) {
      tensors.insert(at, part);
      continue;
    }
    if (at->type != part.type || at->shape != part.shape)
      return file_error("tensor {}: it is {} {} in {}, but {} {} in {}", part.name, enum_name(part.type),
                        to_string(part.shape), shard.file.name, enum_name(at->type), to_string(at->shape),
                        at->shards.empty() ? "others" : at->shards.front().file);
    at->shards.insert(at->shards.end(), part.shards.begin(), part.shards.end());
  }
  return {};
}

const TensorRecord* Manifest::find(std::string_view tensor) const {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), tensor,
                                   [](const TensorRecord& a, std::string_view name) { return a.name < name; });
  return at == tensors.end() || at->name != tensor ? nullptr : &*at;
}

Result<const TensorRecord*> Manifest::find(std::string_view name, StoredType type, const Coordinates& shape) const {
  const TensorRecord* tensor = find(name);
  if (tensor == nullptr) return file_error("there is no tensor {}", name);
  if (tensor->type != type || tensor->shape != shape)
    return file_error("tensor {} is {} {}, expected {} {}", name, enum_name(tensor->type), to_string(tensor->shape),
                      enum_name(type), to_string(shape));
  return tensor;
}

bool valid_tensor_name(std::string_view name) {
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") return false;
    for (const char c : component)
      if (c <= ' ' || c > '~') return false;
    if (end == name.size()) return true;
    begin = end + 1;
  }
}

Result<void> check(const Manifest& manifest) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const std::string& name = manifest.tensors[i].name;
    if (!valid_tensor_name(name)) return file_error("\"{}\" is not a valid name of a tensor", name);
    if (i > 0 && !(manifest.tensors[i - 1].name < name))
      return file_error("tensor {} follows {}: the tensors are not sorted by name", name, manifest.tensors[i - 1].name);
    names.insert(name);
  }
  for (const TensorRecord& tensor : manifest.tensors) {
    const std::string_view name = tensor.name;
    for (size_t at = name.find('/'); at != std::string_view::npos; at = name.find('/', at + 1))
      if (names.count(name.substr(0, at)))
        return file_error("tensors {} and {}: a name cannot be a folder of another name", name.substr(0, at), name);
    if (auto covered = check_cover(tensor); !covered) return covered;
  }
  return check_places(manifest);
}

Result<void> check_files(const std::string& folder, const Manifest& manifest, const Retry& retry) {
  for (const FileRecord& file : manifest.files) {
    const std::string path = folder + "/" + file.name;
    struct stat status {};
    const auto found = retried(retry, [&]() -> Result<void> {
      if (::stat(path.c_str(), &status) != 0) return system_error(errno, "{}", path);
      return {};
    });
    if (!found) return found;
    if (!S_ISREG(status.st_mode)) return file_error("{}: not a regular file", path);
    if (status.st_size != file.bytes)
      return file_error("{}: the file has {} bytes, but the manifest says {}", path, status.st_size, file.bytes);
  }
  return {};
}

Result<std::string> manifest_text(const Manifest& manifest) {
  if (auto checked = check(manifest); !checked) return checked.error();
  std::string text;
  try {
    text =
        fmt::format("{{\n\"format\": {},{}{}\",\n\"attempt\": {},\n\"step\": {},\n\"texts\": {},\n\"numbers\": {},\n",
                    kFormat, kChecksumKey, kNoChecksum, Json(manifest.attempt).dump(), manifest.step,
                    Json(manifest.info.texts).dump(), Json(manifest.info.numbers).dump());
    if (!manifest.info.lists.empty()) text += fmt::format("\"lists\": {},\n", Json(manifest.info.lists).dump());
    text += fmt::format("\"files\": {},\n\"tensors\": {}\n}}\n", files_text(manifest.files),
                        tensors_text(manifest.tensors));
  } catch (const Json::exception& problem) {
    return file_error("{}", problem.what());
  }
  const size_t at = text.find(kChecksumKey) + kChecksumKey.size();
  text.replace(at, kNoChecksum.size(), hex64(xxh3_64(text)));
  return text;
}

Result<void> write_manifest(const std::string& folder, const Manifest& manifest) {
  const std::string path = folder + "/" + kManifestName;
  const auto text = manifest_text(manifest);
  if (!text) return file_error("{}: {}", path, text.error().message);
  return write_file(path, text.value(), manifest.attempt);
}

Result<Manifest> read_manifest(const std::string& folder, const Retry& retry) {
  const std::string path = folder + "/" + kManifestName;
  auto content = retried(retry, [&]() -> Result<std::string> {
    const auto file = InputFile::open(path);  // not mapped, so that failing storage is an error and not a signal
    if (!file) return file.error();
    std::string bytes(static_cast<size_t>(file.value().bytes()), '\0');
    if (auto got = file.value().read(bytes.data(), file.value().bytes(), 0); !got) return got.error();
    return bytes;
  });
  if (!content) return content.error();
  std::string text = std::move(content).value();
  const size_t key = text.find(kChecksumKey);
  if (key == std::string::npos || text.size() < key + kChecksumKey.size() + kNoChecksum.size())
    return file_error("{}: it contains no checksum of itself; it is truncated or not a manifest", path);
  const std::string expected = text.substr(key + kChecksumKey.size(), kNoChecksum.size());
  text.replace(key + kChecksumKey.size(), kNoChecksum.size(), kNoChecksum);
  if (const std::string found = hex64(xxh3_64(text)); found != expected)
    return file_error("{}: it is damaged: XXH3-64 of its text is {}, but it says {}", path, found, expected);

  auto manifest = parsed(text, path);
  if (!manifest) return manifest;
  if (auto checked = check(manifest.value()); !checked) return file_error("{}: {}", path, checked.error().message);
  return manifest;
}

}  // namespace tri
