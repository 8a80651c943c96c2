#include "io/base/hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tri {

struct Xxh3::State {
  XXH3_state_t xxh;  // aligned to 64 bytes by its own declaration
};

Xxh3::Xxh3() : state_(new State) { XXH3_64bits_reset(&state_->xxh); }
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(const void* data, size_t bytes) { XXH3_64bits_update(&state_->xxh, data, bytes); }
uint64_t Xxh3::digest() const { return XXH3_64bits_digest(&state_->xxh); }

uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> parse_hex64(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<uint64_t>(digit);
  }
  return value;
}

}  // namespace tri
