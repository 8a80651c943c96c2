#include "lib/checkpoint/diff.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "io/base/mutex.h"
#include "io/checkpoint/shard_reader.h"
#include "kernels/core/dtype.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/fields.h"

namespace tri {
namespace {

constexpr int64_t kBlockElements = 4 << 20;

// The elements [first, last) of tensors.at(tensor).
struct Range {
  size_t tensor;
  int64_t first, last;
};

struct Found {
  int64_t different = 0;
  double max_abs = 0, max_relative = 0;
};

template <class T>
double value_at(const std::vector<char>& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<float>(value);
  else
    return static_cast<double>(value);
}

using ValueAt = double (*)(const std::vector<char>&, size_t);
// Returns null for a type that no state has.
ValueAt reader_of(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return value_at<float>;
    case StoredType::kBf16:
      return value_at<bf16>;
    case StoredType::kI64:
      return value_at<int64_t>;
    case StoredType::kI32:
      return value_at<int32_t>;
    case StoredType::kU8:
      return value_at<uint8_t>;
    case StoredType::kF16:
      break;
  }
  return nullptr;
}

std::optional<TensorForm> form_of(const Manifest& manifest, const std::string& name) {
  const TensorRecord* tensor = manifest.find(name);
  return tensor == nullptr ? std::nullopt : std::optional(TensorForm{tensor->type, tensor->shape});
}

Result<std::vector<char>> read_range(const CheckpointReader& reader, const std::string& name, const TensorForm& form,
                                     const Range& range) {
  const int64_t width = element_bytes(form.type);
  std::vector<char> bytes(static_cast<size_t>((range.last - range.first) * width));
  int64_t at = 0;
  for (const Region& region : regions_of_range(form.shape, range.first, range.last)) {
    auto read = reader.read({.tensor = name, .type = form.type, .shape = form.shape, .region = region},
                            bytes.data() + at, Checking::kTrust);
    if (!read) return read.error();
    at += num_elements(region.extent) * width;
  }
  return bytes;
}

Found compare(const std::vector<char>& a, StoredType a_type, const std::vector<char>& b, StoredType b_type,
              int64_t count) {
  Found found;
  if (a_type == b_type && a == b) return found;
  const ValueAt a_at = reader_of(a_type), b_at = reader_of(b_type);
  for (int64_t i = 0; i < count; ++i) {
    const double x = a_at(a, static_cast<size_t>(i)), y = b_at(b, static_cast<size_t>(i));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double distance = std::abs(x - y);
    const bool finite = std::isfinite(x) && std::isfinite(y);
    ++found.different;
    found.max_abs = std::max(found.max_abs, finite ? distance : std::numeric_limits<double>::infinity());
    found.max_relative = std::max(found.max_relative, finite ? distance / std::max(std::abs(x), std::abs(y))
                                                             : std::numeric_limits<double>::infinity());
  }
  return found;
}

std::vector<ConfigDiff> config_diff(const std::string& a, const Manifest& a_manifest, const std::string& b,
                                    const Manifest& b_manifest) {
  const auto x = checkpoint_config(a, a_manifest), y = checkpoint_config(b, b_manifest);
  if (!x || !y) return {};  // not made by this program: there is no config to compare
  std::vector<ConfigDiff> fields;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields) {
      const std::string mine = field.print(x.value()), other = field.print(y.value());
      if (mine != other) fields.push_back({field.name(), mine, other});
    }
  return fields;
}

}  // namespace

bool TensorDiff::equal() const { return a && b && *a == *b && different == 0; }

bool CheckpointDiff::equal() const {
  return std::all_of(tensors.begin(), tensors.end(), [](const TensorDiff& tensor) { return tensor.equal(); });
}

Result<CheckpointDiff> diff_checkpoints(const std::string& a, const std::string& b, const std::string& prefix,
                                        int threads, const std::function<void(int64_t)>& progress) {
  auto a_reader = CheckpointReader::open(a), b_reader = CheckpointReader::open(b);
  if (!a_reader) return a_reader.error();
  if (!b_reader) return b_reader.error();
  const Manifest &a_manifest = a_reader.value().manifest(), &b_manifest = b_reader.value().manifest();
  CheckpointDiff diff{.a_step = a_manifest.step, .b_step = b_manifest.step};
  diff.config = config_diff(a, a_manifest, b, b_manifest);
  std::set<std::string> names;
  for (const Manifest* manifest : {&a_manifest, &b_manifest})
    for (const TensorRecord& tensor : manifest->tensors)
      if (tensor.name.starts_with(prefix)) names.insert(tensor.name);
  std::vector<Range> ranges;
  for (const std::string& name : names) {
    TensorDiff tensor{.name = name, .a = form_of(a_manifest, name), .b = form_of(b_manifest, name)};
    if (tensor.a && tensor.b && tensor.a->shape == tensor.b->shape && reader_of(tensor.a->type) != nullptr &&
        reader_of(tensor.b->type) != nullptr) {
      tensor.elements = num_elements(tensor.a->shape);
      for (int64_t first = 0; first < tensor.elements; first += kBlockElements)
        ranges.push_back({diff.tensors.size(), first, std::min(first + kBlockElements, tensor.elements)});
    }
    diff.tensors.push_back(std::move(tensor));
  }

  std::atomic<size_t> next{0};
  Mutex mutex;  // guards diff.tensors' figures, result, progress
  Result<void> result;
  const auto work = [&] {
    for (size_t i = next++; i < ranges.size(); i = next++) {
      const Range& range = ranges[i];
      TensorDiff& tensor = diff.tensors[range.tensor];
      const auto x = read_range(a_reader.value(), tensor.name, *tensor.a, range),
                 y = read_range(b_reader.value(), tensor.name, *tensor.b, range);
      const int64_t count = range.last - range.first;
      const Found found = x && y ? compare(x.value(), tensor.a->type, y.value(), tensor.b->type, count) : Found{};
      const MutexLock lock(mutex);
      if (!x || !y) {
        if (result) result = x ? y.error() : x.error();
        next = ranges.size();
        return;
      }
      tensor.different += found.different;
      tensor.max_abs = std::max(tensor.max_abs, found.max_abs);
      tensor.max_relative = std::max(tensor.max_relative, found.max_relative);
      if (progress) progress(count * element_bytes(tensor.a->type));
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int i = 1; i < threads; ++i) pool.emplace_back(work);
    work();
  }
  if (!result) return result.error();
  return diff;
}

}  // namespace tri
