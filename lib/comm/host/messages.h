// Values as bytes, for messages between the hosts of a job.
//
// What can be sent:
//   trivially copyable types: numbers, bools, enums, structs of such without pointers
//   std::string; std::vector, std::optional, std::pair, std::map, Error and Result of what can be sent
//   a struct that names its fields once, in its own namespace and before its first use:
//       template <class Archive>
//       void fields(Archive& archive, Figures& f) { archive(f.step, f.folder, f.seconds); }
// The ranks of a job run one program on machines of one kind, so numbers are sent in their memory representation.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/base/error.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, Error& error) {
  archive(error.message, error.code, error.os_error);
}

namespace messages {

struct AnyArchive {
  template <class... Ts>
  void operator()(Ts&...) {}
};

template <class T>
concept NamesItsFields = requires(AnyArchive& archive, T& value) {
  fields(archive, value);
};

template <class T>
concept Bytewise = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_array_v<T> &&
                   !std::is_convertible_v<T, std::string_view> && !NamesItsFields<T>;

template <class T>
inline constexpr bool kIsResult = false;
template <class T>
inline constexpr bool kIsResult<Result<T>> = true;

// Returns a value to read into.
template <class T>
T blank() {
  if constexpr (kIsResult<T>)
    return Error{};
  else
    return T{};
}

class Writer {
 public:
  template <class... Ts>
  void operator()(const Ts&... values) {
    (put(values), ...);
  }
  std::string take() && { return std::move(bytes_); }

 private:
  void append(const void* data, size_t bytes) { bytes_.append(static_cast<const char*>(data), bytes); }
  void put_count(size_t count) {
    const auto number = static_cast<uint64_t>(count);
    append(&number, sizeof number);
  }

  template <class T>
  void put(const T& value) {
    if constexpr (NamesItsFields<T>) {
      fields(*this, const_cast<T&>(value));  // only read here: one list of fields serves both directions
    } else {
      static_assert(Bytewise<T>,
                    "this type can't be sent: give it fields(archive, value), see lib/comm/host/messages.h");
      append(&value, sizeof value);
    }
  }
  void put(const std::string& text) {
    put_count(text.size());
    append(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& values) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements that can be read into");
    put_count(values.size());
    if constexpr (Bytewise<T>)
      append(values.data(), values.size() * sizeof(T));
    else
      for (const T& value : values) put(value);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& pair) {
    put(pair.first);
    put(pair.second);
  }
  template <class K, class V>
  void put(const std::map<K, V>& values) {
    put_count(values.size());
    for (const auto& [key, value] : values) {
      put(key);
      put(value);
    }
  }
  template <class T>
  void put(const Result<T>& result) {
    put(result.ok());
    if (!result)
      put(result.error());
    else if constexpr (!std::is_void_v<T>)
      put(result.value());
  }

  std::string bytes_;
};

// Reads values. Throws Fatal (kComm) if the bytes do not encode the requested values.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class... Ts>
  void operator()(Ts&... values) {
    (get(values), ...);
  }
  void finish() const {
    if (at_ != bytes_.size())
      throw Fatal(ExitCode::kComm, fmt::format("a message between ranks is malformed: {} of its {} bytes are surplus",
                                               bytes_.size() - at_, bytes_.size()));
  }

 private:
  [[noreturn]] void malformed(const std::string& wanted) const {
    throw Fatal(ExitCode::kComm,
                fmt::format("a message between ranks is malformed: {} at byte {} of {}", wanted, at_, bytes_.size()));
  }
  void extract(void* out, size_t bytes) {
    if (bytes > bytes_.size() - at_) malformed(fmt::format("{} more bytes are expected", bytes));
    if (bytes > 0) std::memcpy(out, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  // Returns the count of elements of at least `element_bytes` each; never more than the message can hold, so that a
  // malformed count allocates nothing.
  size_t count_of(size_t element_bytes) {
    uint64_t count = 0;
    extract(&count, sizeof count);
    if (count > (bytes_.size() - at_) / element_bytes) malformed(fmt::format("{} elements are announced", count));
    return static_cast<size_t>(count);
  }

  template <class T>
  void get(T& value) {
    if constexpr (NamesItsFields<T>) {
      fields(*this, value);
    } else {
      static_assert(Bytewise<T>,
                    "this type can't be sent: give it fields(archive, value), see lib/comm/host/messages.h");
      extract(&value, sizeof value);
    }
  }
  void get(bool& value) {
    unsigned char byte = 0;
    extract(&byte, 1);
    if (byte > 1) malformed(fmt::format("a bool has the value {}", byte));
    value = byte == 1;
  }
  void get(std::string& text) {
    text.resize(count_of(1));
    extract(text.data(), text.size());
  }
  template <class T>
  void get(std::vector<T>& values) {
    if constexpr (Bytewise<T>) {
      values.resize(count_of(sizeof(T)));
      extract(values.data(), values.size() * sizeof(T));
    } else {
      const size_t count = count_of(1);
      values.clear();
      for (size_t i = 0; i < count; ++i) {
        T value = blank<T>();
        get(value);
        values.push_back(std::move(value));
      }
    }
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool there = false;
    get(there);
    value.reset();
    if (there) get(value.emplace(blank<T>()));
  }
  template <class A, class B>
  void get(std::pair<A, B>& pair) {
    get(pair.first);
    get(pair.second);
  }
  template <class K, class V>
  void get(std::map<K, V>& values) {
    const size_t count = count_of(1);
    values.clear();
    for (size_t i = 0; i < count; ++i) {
      std::pair<K, V> entry{blank<K>(), blank<V>()};
      get(entry);
      if (!values.insert(std::move(entry)).second) malformed("a key occurs twice");
    }
  }
  template <class T>
  void get(Result<T>& result) {
    bool ok = false;
    get(ok);
    if (!ok) {
      Error error;
      get(error);
      result = std::move(error);
    } else if constexpr (std::is_void_v<T>) {
      result = Result<void>();
    } else {
      T value = blank<T>();
      get(value);
      result = std::move(value);
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace messages

template <class T>
std::string to_bytes(const T& value) {
  messages::Writer writer;
  writer(value);
  return std::move(writer).take();
}

// Returns the T that to_bytes() has encoded. Throws Fatal (kComm) if the bytes do not encode a T.
template <class T>
T from_bytes(std::string_view bytes) {
  T value = messages::blank<T>();
  messages::Reader reader(bytes);
  reader(value);
  reader.finish();
  return value;
}

// Returns the error of a job some of whose ranks failed: that of the first of them in the order of world ranks, with
// its code and errno; none if no rank failed. The message names the rank, unless it is rank 0 alone or all ranks have
// the same message.
std::optional<Error> first_error(const std::vector<std::optional<Error>>& of_ranks);

}  // namespace tri
