// SipHash-2-4 (Aumasson and Bernstein 2012): a message authentication code for short messages under a 128-bit key.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tri {

using SipKey = std::array<uint64_t, 2>;

uint64_t siphash(const SipKey& key, std::string_view bytes);

}  // namespace tri
