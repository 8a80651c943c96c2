#include "io/tokens/bpe/bpe_tokenizer.h"

#include "io/base/mutex.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

// Memory for one encoding in addition to the tokenizer, reused for the next.
struct Scratch {
  Matcher matcher;
  BytePairEncoder::WordCache words;
  std::vector<TextPiece> pieces, inner_pieces;
};

struct Segment {
  size_t begin = 0, end = 0;
  bool match = false;
};

// Joins neighbours that belong together.
void join(std::vector<Segment>& segments, SplitBehavior behavior) {
  std::vector<Segment> joined;
  const auto grows = [&](const Segment& last, const Segment& next, bool last_ends_in_match) {
    switch (behavior) {
      case SplitBehavior::kContiguous:
        return last.match == next.match;
      case SplitBehavior::kMergedWithPrevious:
        return next.match && !last_ends_in_match;
      case SplitBehavior::kMergedWithNext:
        return last_ends_in_match && !next.match;
      default:
        return false;
    }
  };
  bool ends_in_match = false;
  for (const Segment& segment : segments) {
    if (!joined.empty() && grows(joined.back(), segment, ends_in_match))
      joined.back().end = segment.end;
    else
      joined.push_back(segment);
    ends_in_match = segment.match;
  }
  segments = std::move(joined);
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(BpeDescription description, const std::array<int32_t, 256>& bytes,
               std::unordered_map<std::string, int32_t> words)
      : d_(std::move(description)),
        bytes_(bytes),
        encoder_(bytes, d_.merges, std::move(words), d_.whole),
        special_(d_.token_bytes.size()) {
    std::vector<AddedToken> before, behind;
    for (const AddedToken& token : d_.added) {
      special_[static_cast<size_t>(token.id)] = token.special;
      auto& list = token.normalized ? behind : before;
      list.push_back(token);
      list.back().kept_as_text = d_.splits_special && token.special;
    }
    for (AddedToken& token : behind) token.content = normalized(token.content);
    before_ = AddedTokenFinder(before);
    behind_ = AddedTokenFinder(behind);
    d_.merges = {};
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> out = d_.begin;
    std::unique_ptr<Scratch> scratch = take_scratch();
    while (!text.empty()) {
      const size_t good = utf8_prefix(text);
      if (good > 0) encode_utf8(text.substr(0, good), *scratch, out);
      text.remove_prefix(good);
      if (text.empty()) break;
      out.push_back(bytes_[static_cast<unsigned char>(text[0])]);
      text.remove_prefix(1);
    }
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(scratch));
    return out;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens)
      if (known(token) && !special_[static_cast<size_t>(token)]) text += d_.token_bytes[static_cast<size_t>(token)];
    return text;
  }
  int vocab_size() const override { return static_cast<int>(d_.token_bytes.size()); }
  int32_t eod() const override { return d_.eod; }
  int token_bytes(int32_t token) const override {
    if (!known(token) || special_[static_cast<size_t>(token)]) return 0;
    return static_cast<int>(d_.token_bytes[static_cast<size_t>(token)].size());
  }
  std::string fingerprint() const override { return d_.fingerprint; }

 private:
  bool known(int32_t token) const { return token >= 0 && token < vocab_size(); }

  std::unique_ptr<Scratch> take_scratch() const {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> taken = std::move(idle_.back());
    idle_.pop_back();
    return taken;
  }

  std::string normalized(std::string text) const {
    for (const NormalForm form : d_.normal_forms) text = normalize(text, form);
    return text;
  }

  void encode_utf8(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
    scratch.pieces.clear();
    before_.split(text, scratch.pieces);
    for (const TextPiece& piece : scratch.pieces) {
      if (piece.token >= 0) {
        out.push_back(piece.token);
        continue;
      }
      std::string made;
      std::string_view words = piece.text;
      if (!d_.normal_forms.empty()) words = made = normalized(std::string(piece.text));
      if (behind_.empty()) {
        split(0, words, scratch, out);
        continue;
      }
      scratch.inner_pieces.clear();
      behind_.split(words, scratch.inner_pieces);
      for (const TextPiece& inner : scratch.inner_pieces)
        if (inner.token >= 0)
          out.push_back(inner.token);
        else
          split(0, inner.text, scratch, out);
    }
  }

  // Passes a piece through the steps from `step` on; after the last step it is a word.
  void split(size_t step, std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
    if (text.empty()) return;
    if (step == d_.steps.size()) {
      encoder_.encode(text, scratch.words, out);
      return;
    }
    const SplitStep& s = d_.steps[step];
    if (!s.pattern) {
      if (text.starts_with(' ')) return split(step + 1, text, scratch, out);
      return split(step + 1, " " + std::string(text), scratch, out);
    }
    if (s.behavior == SplitBehavior::kIsolated || s.behavior == SplitBehavior::kRemoved) {
      for_segments(s, text, scratch.matcher, [&](const Segment& segment) {
        if (segment.match && s.behavior == SplitBehavior::kRemoved) return;
        split(step + 1, text.substr(segment.begin, segment.end - segment.begin), scratch, out);
      });
      return;
    }
    std::vector<Segment> segments;
    for_segments(s, text, scratch.matcher, [&](const Segment& segment) { segments.push_back(segment); });
    join(segments, s.behavior);
    for (const Segment& segment : segments)
      split(step + 1, text.substr(segment.begin, segment.end - segment.begin), scratch, out);
  }

  // Calls `use` with the matches and the text between them, in order.
  template <class Use>
  static void for_segments(const SplitStep& step, std::string_view text, Matcher& matcher, Use use) {
    size_t at = 0;
    for (Match match; matcher.next(*step.pattern, text, at, match); at = match.end) {
      if (match.begin > at) use(Segment{at, match.begin, step.invert});
      use(Segment{match.begin, match.end, !step.invert});
    }
    if (at < text.size()) use(Segment{at, text.size(), step.invert});
  }

  BpeDescription d_;
  std::array<int32_t, 256> bytes_;  // the token of each byte
  BytePairEncoder encoder_;
  std::vector<char> special_;  // [id]
  AddedTokenFinder before_, behind_;

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_ TRI_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(BpeDescription description) {
  std::array<int32_t, 256> bytes;
  bytes.fill(-1);
  std::unordered_map<std::string, int32_t> words;
  std::vector<char> no_word(description.token_bytes.size());
  for (const AddedToken& token : description.added) no_word[static_cast<size_t>(token.id)] = 1;
  for (const int32_t id : description.unspelled) no_word[static_cast<size_t>(id)] = 1;
  for (size_t id = 0; id < description.token_bytes.size(); ++id) {
    const std::string& text = description.token_bytes[id];
    if (no_word[id] || text.empty()) continue;
    if (text.size() == 1) bytes[static_cast<unsigned char>(text[0])] = static_cast<int32_t>(id);
    if (description.whole == WholeWords::kTaken) words.emplace(text, static_cast<int32_t>(id));
  }
  // A byte's own token may also be an added one (a pad_token "!").
  for (size_t id = 0; id < description.token_bytes.size(); ++id)
    if (const std::string& text = description.token_bytes[id]; text.size() == 1)
      if (int32_t& byte = bytes[static_cast<unsigned char>(text[0])]; byte < 0) byte = static_cast<int32_t>(id);
  for (size_t byte = 0; byte < 256; ++byte)
    if (bytes[byte] < 0)
      return file_error(
          "{}: byte 0x{:02x} has no token; only vocabularies of byte-level BPE with all 256 are supported",
          description.path, byte);
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(description), bytes, std::move(words)));
}

}  // namespace tri
