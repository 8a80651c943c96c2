// Messages between the driver and its agents: frames, each of which proves that its sender knows the token of the job
// and that it was made for this position in this connection.
//
//   driver -> agent   greeting: "TRIREME1", 16 random bytes
//   agent -> driver   16 random bytes, then frames
//   driver -> agent   frames
//   a frame           u32 length of the payload, u64 tag, payload; little-endian
//
//   tag               SipHash-2-4 of direction, frame number and payload, under a key derived from the token and both
//                     random numbers
//
// The token itself is never sent. A frame recorded from another connection, or earlier in this one, has the wrong tag.
// The content is not encrypted, because it contains no secret.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// SipHash-2-4 (Aumasson and Bernstein 2012): a message authentication code for short messages under a 128-bit key.
using SipKey = std::array<uint64_t, 2>;
uint64_t siphash(const SipKey& key, std::string_view bytes);

using Nonce = std::array<uint64_t, 2>;

inline constexpr std::string_view kGreeting = "TRIREME1";
inline constexpr size_t kMaxPayload = 64 << 10, kFrameHeader = 12;

// Returns 128 random bits from the kernel. Throws Fatal (kFile) if the kernel provides none.
Nonce random_nonce();

// The secret of one job: "0x..." with 32 digits in the private environment of its processes.
struct JobToken {
  SipKey key{};
};
JobToken new_token();
std::string to_text(const JobToken& token);  // 32 hexadecimal digits
std::optional<JobToken> token_from(std::string_view text);

enum class Direction : uint64_t { kToDriver = 1, kToAgent = 2 };

// Returns the key of one connection.
SipKey session_key(const JobToken& token, const Nonce& of_driver, const Nonce& of_agent);

// Creates the frames of one direction of a connection, in order.
class FrameWriter {
 public:
  FrameWriter(const SipKey& key, Direction direction) : key_(key), direction_(direction) {}
  std::string frame(std::string_view payload);  // at most kMaxPayload bytes

 private:
  SipKey key_;
  Direction direction_;
  uint64_t number_ = 0;
};

// Parses frames. Memory is bounded by the limit plus what one call of feed() adds.
class FrameReader {
 public:
  // `limit`: maximum bytes of a payload; it may be raised once the sender is authenticated.
  FrameReader(const SipKey& key, Direction direction, size_t limit) : key_(key), direction_(direction), limit_(limit) {}
  void set_limit(size_t bytes) { limit_ = bytes; }
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  enum class Outcome { kIncomplete, kFrame, kRefused };
  // Returns the next payload. kRefused: it is too long or its tag is wrong; nothing that follows can be trusted.
  Outcome next(std::string& payload);

 private:
  SipKey key_;
  Direction direction_;
  size_t limit_;
  uint64_t number_ = 0;
  std::string buffer_;
};

}  // namespace tri
