#include "lib/supervise/frames.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace tri {
namespace {

struct SipState {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    c += d;
    b = std::rotl(b, 13) ^ a;
    d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32);
    c += b;
    a += d;
    b = std::rotl(b, 17) ^ c;
    d = std::rotl(d, 21) ^ a;
    c = std::rotl(c, 32);
  }
  void absorb(uint64_t word) {
    d ^= word;
    round();
    round();
    a ^= word;
  }
};

uint64_t tag_of(const SipKey& key, Direction direction, uint64_t number, std::string_view payload) {
  std::string bytes(16, '\0');
  const std::array<uint64_t, 2> head{static_cast<uint64_t>(direction), number};
  std::memcpy(bytes.data(), head.data(), sizeof head);
  bytes += payload;
  return siphash(key, bytes);
}

// Takes the same time wherever the values differ.
bool equal_in_constant_time(uint64_t a, uint64_t b) {
  volatile uint64_t difference = a ^ b;
  return difference == 0;
}

}  // namespace

uint64_t siphash(const SipKey& key, std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                 key[1] ^ 0x7465646279746573};
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    state.absorb(word);
  }
  for (size_t i = 0; i < bytes.size(); ++i) last |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  state.absorb(last);
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

Nonce random_nonce() {
  Nonce nonce{};
  if (::getrandom(nonce.data(), sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce))
    throw Fatal(ExitCode::kFile, "getrandom() returned no random numbers: " + std::string(std::strerror(errno)));
  return nonce;
}

JobToken new_token() { return {random_nonce()}; }

std::string to_text(const JobToken& token) { return fmt::format("{:016x}{:016x}", token.key[0], token.key[1]); }

std::optional<JobToken> token_from(std::string_view text) {
  JobToken token;
  if (text.size() != 32) return std::nullopt;
  for (size_t half = 0; half < 2; ++half) {
    const char *begin = text.data() + 16 * half, *end = begin + 16;
    const auto [stop, problem] = std::from_chars(begin, end, token.key[half], 16);
    if (problem != std::errc() || stop != end) return std::nullopt;
  }
  return token;
}

SipKey session_key(const JobToken& token, const Nonce& of_driver, const Nonce& of_agent) {
  std::string bytes(40, '\0');
  std::memcpy(bytes.data(), of_driver.data(), 16);
  std::memcpy(bytes.data() + 16, of_agent.data(), 16);
  SipKey key;
  for (uint64_t half = 0; half < 2; ++half) {
    std::memcpy(bytes.data() + 32, &half, sizeof half);
    key[half] = siphash(token.key, bytes);
  }
  return key;
}

std::string FrameWriter::frame(std::string_view payload) {
  TRI_REQUIRE(payload.size() <= kMaxPayload, "a frame of {} bytes exceeds the limit", payload.size());
  const auto length = static_cast<uint32_t>(payload.size());
  const uint64_t tag = tag_of(key_, direction_, number_++, payload);
  std::string bytes(kFrameHeader, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, &tag, sizeof tag);
  bytes += payload;
  return bytes;
}

FrameReader::Outcome FrameReader::next(std::string& payload) {
  if (buffer_.size() < kFrameHeader) return Outcome::kIncomplete;
  uint32_t length = 0;
  uint64_t tag = 0;
  std::memcpy(&length, buffer_.data(), sizeof length);
  std::memcpy(&tag, buffer_.data() + sizeof length, sizeof tag);
  if (length > limit_) return Outcome::kRefused;
  if (buffer_.size() < kFrameHeader + length) return Outcome::kIncomplete;
  const auto content = std::string_view(buffer_).substr(kFrameHeader, length);
  if (!equal_in_constant_time(tag, tag_of(key_, direction_, number_, content))) return Outcome::kRefused;
  ++number_;
  payload = content;
  buffer_.erase(0, kFrameHeader + length);
  return Outcome::kFrame;
}

}  // namespace tri
