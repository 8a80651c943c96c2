#include "io/tokens/sentencepiece_json.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <vector>

#include "io/base/json.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using Json = nlohmann::json;  // sorted keys: an ordered one searches the whole vocabulary for each key

// One field of a message of Protocol Buffers.
struct Field {
  int number = 0;
  uint64_t value = 0;      // of a varint or of fixed bits
  std::string_view bytes;  // of a string or a message
};

// Removes the first field from `message`; number 0 if it is damaged or of a kind that such models do not have.
Field take_field(std::string_view& message) {
  const auto varint = [&]() -> uint64_t {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[0]);
      message.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  const auto fixed = [&](size_t bytes) -> uint64_t {
    uint64_t value = 0;
    for (size_t i = 0; i < std::min(bytes, message.size()); ++i)
      value |= uint64_t{static_cast<unsigned char>(message[i])} << 8 * i;
    message.remove_prefix(std::min(bytes, message.size()));
    return value;
  };
  const uint64_t key = varint();
  Field field{.number = static_cast<int>(key >> 3)};
  switch (key & 7) {
    case 0:
      field.value = varint();
      return field;
    case 1:
      field.value = fixed(8);
      return field;
    case 2: {
      const uint64_t length = std::min<uint64_t>(varint(), message.size());
      field.bytes = message.substr(0, length);
      message.remove_prefix(length);
      return field;
    }
    case 5:
      field.value = fixed(4);
      return field;
    default:
      return {};
  }
}

// sentencepiece_model.proto: ModelProto.SentencePiece.
struct Piece {
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t kind = 1;  // TrainerSpec.model_type: 1 unigram, 2 BPE
  bool byte_fallback = false;
  bool dummy_prefix = true, removes_spaces = true, changes_characters = false;
};

Result<Model> read_model(std::string_view message) {
  Model model;
  while (!message.empty()) {
    Field field = take_field(message);
    if (field.number == 0) return file_error("not a SentencePiece model");
    for (std::string_view inner = field.bytes; !inner.empty();) {
      if (field.number == 1 && inner.size() == field.bytes.size()) model.pieces.emplace_back();
      const Field part = take_field(inner);
      if (part.number == 0) return file_error("not a SentencePiece model");
      if (field.number == 1) {
        Piece& piece = model.pieces.back();
        if (part.number == 1) piece.text = part.bytes;
        if (part.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(part.value));
        if (part.number == 3) piece.type = part.value;
      } else if (field.number == 2) {  // TrainerSpec
        if (part.number == 3) model.kind = part.value;
        if (part.number == 35) model.byte_fallback = part.value != 0;
      } else if (field.number == 3) {  // NormalizerSpec
        if (part.number == 2) model.changes_characters = !part.bytes.empty();
        if (part.number == 3) model.dummy_prefix = part.value != 0;
        if (part.number == 4) model.removes_spaces = part.value != 0;
      }
    }
  }
  return model;
}

// Returns every way to make a normal piece of two others; all are UTF-8. Among pieces with equal scores, lower numbers
// come first.
Json merges_of(const Model& model) {
  std::unordered_map<std::string_view, size_t> normal;
  std::vector<size_t> order;
  for (size_t i = 0; i < model.pieces.size(); ++i)
    if (model.pieces[i].type == Piece::kNormal) {
      normal.emplace(model.pieces[i].text, i);
      order.push_back(i);
    }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return model.pieces[a].score > model.pieces[b].score; });
  Json merges = Json::array();
  for (const size_t i : order) {
    const std::string_view piece = model.pieces[i].text;
    for (size_t cut = utf8_sequence(piece); cut > 0 && cut < piece.size(); cut += utf8_sequence(piece.substr(cut)))
      if (normal.contains(piece.substr(0, cut)) && normal.contains(piece.substr(cut)))
        merges.push_back({piece.substr(0, cut), piece.substr(cut)});
  }
  return merges;
}

}  // namespace

Result<std::string> sentencepiece_tokenizer_json(std::string_view bytes) {
  const auto read = read_model(bytes);
  if (!read) return read.error();
  const Model& model = read.value();
  if (model.kind != 2 || !model.byte_fallback) return file_error("not BPE with byte fallback");
  if (model.dummy_prefix || model.removes_spaces || model.changes_characters)
    return file_error("it changes text before it splits it");
  Json vocab = Json::object(), added = Json::array(), unknown;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.text.empty() || utf8_prefix(piece.text) != piece.text.size())
      return file_error("its piece {} is empty or not UTF-8", id);
    vocab[piece.text] = id;
    if (piece.type == Piece::kUserDefined) return file_error("it has user-defined symbols");
    if (piece.type == Piece::kUnknown) unknown = piece.text;
    if (piece.type == Piece::kUnknown || piece.type == Piece::kControl)
      added.push_back({{"id", id},
                       {"content", piece.text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  const char* space = "\xe2\x96\x81";  // U+2581 represents a space
  const Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}}},
                     {"pre_tokenizer", nullptr},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", unknown},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", true},
                       {"byte_fallback", true},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", merges_of(model)}}}};
  return json.dump(1) + "\n";
}

}  // namespace tri
