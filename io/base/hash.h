// XXH3-64, the checksum of everything this program stores: tens of GB/s per core, so data is hashed on its way to
// storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tri {

// A checksum of bytes that arrive in parts; equal to xxh3_64 of all of them together.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  void update(const void* data, size_t bytes);
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t xxh3_64(const void* data, size_t bytes);  // XXH3-64 with seed 0
inline uint64_t xxh3_64(std::string_view text) { return xxh3_64(text.data(), text.size()); }

// Format as 16 lower-case hexadecimal digits, and parse exactly that.
std::string hex64(uint64_t value);
std::optional<uint64_t> parse_hex64(std::string_view text);

}  // namespace tri
