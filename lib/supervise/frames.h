// What travels between the driver and its agents: frames that prove, each for itself, that their sender knows the token
// of the job, and that they were made for this connection and this place in it.
//
//   driver -> agent   greeting: "TRIREME1", 16 random bytes
//   agent -> driver   16 random bytes, then frames
//   driver -> agent   frames
//   a frame           u32 length of the payload, u64 tag, payload; little-endian
//   tag               SipHash-2-4 of direction, number of the frame and payload, under a key that the token and both
//                     random numbers make
//
// The token itself never travels. What was recorded of another connection, or earlier in this one, has the wrong tag.
// The content is not encrypted: it holds no secret.
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

// 128 bits of chance, from the kernel. Fatal(kFile): it gives none.
Nonce random_nonce();

// The secret of one job, "0x..." of 32 digits in the private environment of its processes.
struct JobToken {
  SipKey key{};
};
JobToken new_token();
std::string to_text(const JobToken& token);  // 32 hexadecimal digits
std::optional<JobToken> token_from(std::string_view text);

enum class Direction : uint64_t { kToDriver = 1, kToAgent = 2 };

// The key of one connection.
SipKey session_key(const JobToken& token, const Nonce& of_driver, const Nonce& of_agent);

// Makes the frames of one direction of a connection, in order.
class FrameWriter {
 public:
  FrameWriter(const SipKey& key, Direction direction) : key_(key), direction_(direction) {}
  std::string frame(std::string_view payload);  // at most kMaxPayload bytes

 private:
  SipKey key_;
  Direction direction_;
  uint64_t number_ = 0;
};

// Takes them apart. Memory is bounded by the limit and what one call of feed brings.
class FrameReader {
 public:
  // `limit`: bytes of a payload; it may be raised once the sender is known.
  FrameReader(const SipKey& key, Direction direction, size_t limit) : key_(key), direction_(direction), limit_(limit) {}
  void set_limit(size_t bytes) { limit_ = bytes; }
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  enum class Outcome { kIncomplete, kFrame, kRefused };
  // The next payload. kRefused: too long, or the tag is wrong; nothing that follows can be trusted either.
  Outcome next(std::string& payload);

 private:
  SipKey key_;
  Direction direction_;
  size_t limit_;
  uint64_t number_ = 0;
  std::string buffer_;
};

}  // namespace tri
