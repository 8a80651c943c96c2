// What proves that a frame comes from a holder of the token, and what is refused.
#include "lib/supervise/frames.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tri {
namespace {

using Outcome = FrameReader::Outcome;

constexpr SipKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};

TEST(SipHash, equals_the_vectors_of_its_authors) {
  std::string bytes;
  EXPECT_EQ(siphash(kKey, bytes), 0x726fdb47dd0e0e31);
  for (char c = 0; c < 15; ++c) bytes += c;
  EXPECT_EQ(siphash(kKey, bytes), 0xa129ca6149be45e5);
}

TEST(Frames, come_back_in_order_however_they_are_cut) {
  FrameWriter writer(kKey, Direction::kToDriver);
  std::string stream;
  for (const std::string& payload : {std::string("first"), std::string(), std::string(5000, 'x')})
    stream += writer.frame(payload);
  for (const size_t cut : {size_t{1}, size_t{7}, stream.size()}) {
    FrameReader reader(kKey, Direction::kToDriver, kMaxPayload);
    std::vector<std::string> payloads;
    std::string payload;
    for (size_t at = 0; at < stream.size(); at += cut) {
      reader.feed(std::string_view(stream).substr(at, cut));
      Outcome outcome;
      while ((outcome = reader.next(payload)) == Outcome::kFrame) payloads.push_back(payload);
      ASSERT_EQ(outcome, Outcome::kIncomplete);
    }
    EXPECT_EQ(payloads, (std::vector<std::string>{"first", "", std::string(5000, 'x')})) << cut;
  }
}

Outcome first_outcome(const std::string& bytes, const SipKey& key = kKey, Direction direction = Direction::kToDriver) {
  FrameReader reader(key, direction, 1000);
  reader.feed(bytes);
  std::string payload;
  return reader.next(payload);
}

TEST(Frames, any_changed_bit_is_refused) {
  const std::string frame = FrameWriter(kKey, Direction::kToDriver).frame("report");
  ASSERT_EQ(first_outcome(frame), Outcome::kFrame);
  for (size_t bit = 8 * sizeof(uint32_t); bit < 8 * frame.size(); ++bit) {
    std::string changed = frame;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(first_outcome(changed), Outcome::kRefused) << bit;
  }
}

TEST(Frames, of_another_key_direction_or_place_are_refused) {
  FrameWriter writer(kKey, Direction::kToDriver);
  const std::string first = writer.frame("report"), second = writer.frame("report");
  EXPECT_EQ(first_outcome(first, {kKey[0], kKey[1] ^ 1}), Outcome::kRefused);
  EXPECT_EQ(first_outcome(first, kKey, Direction::kToAgent), Outcome::kRefused);
  EXPECT_EQ(first_outcome(second), Outcome::kRefused);
  FrameReader reader(kKey, Direction::kToDriver, 1000);
  reader.feed(first + first);
  std::string payload;
  EXPECT_EQ(reader.next(payload), Outcome::kFrame);
  EXPECT_EQ(reader.next(payload), Outcome::kRefused) << "a replay";
}

TEST(Frames, a_huge_length_is_refused_before_its_bytes_come) {
  EXPECT_EQ(first_outcome(std::string(kFrameHeader, '\xff')), Outcome::kRefused);
  EXPECT_EQ(first_outcome(FrameWriter(kKey, Direction::kToDriver).frame(std::string(1001, 'x')).substr(0, 12)),
            Outcome::kRefused);
}

TEST(Frames, both_random_numbers_and_the_token_make_the_key) {
  const JobToken token{kKey};
  const Nonce a{1, 2}, b{3, 4};
  const SipKey key = session_key(token, a, b);
  EXPECT_EQ(session_key(token, a, b), key);
  EXPECT_NE(session_key(token, b, a), key);
  EXPECT_NE(session_key(token, a, {3, 5}), key);
  EXPECT_NE(session_key({{kKey[0], 0}}, a, b), key);
}

TEST(Tokens, come_back_from_their_text_and_nothing_else_does) {
  const JobToken token = new_token();
  const auto again = token_from(to_text(token));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->key, token.key);
  EXPECT_NE(new_token().key, token.key);
  for (const std::string text : {"", "0", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef0"})
    EXPECT_FALSE(token_from(text)) << text;
}

}  // namespace
}  // namespace tri
