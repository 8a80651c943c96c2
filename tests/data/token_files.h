// Token files for tests.
#pragma once

#include <string>
#include <vector>

#include "io/tokens/loss_mask.h"
#include "io/tokens/token_file.h"

namespace tri {

// Writes a token file whose token at position i is base + i: a sample shows its origin.
inline void write_counting(const std::string& prefix, int tokens, int base = 0, TokenType type = TokenType::kI32) {
  auto writer = value_or_throw(TokenFileWriter::create(prefix, type));
  std::vector<int32_t> document;
  for (int i = 0; i < tokens; ++i) {
    document.push_back(base + i);
    if (i % 37 == 36 || i + 1 == tokens) {
      writer.add_document(document);
      document.clear();
    }
  }
  value_or_throw(writer.finish());
}

// Writes the loss mask of such a file, which exists: of the tokens whose place is a multiple of `period`, none is
// trained.
inline void write_mask(const std::string& prefix, int tokens, int period) {
  auto writer = value_or_throw(LossMaskWriter::create(prefix));
  for (int i = 0; i < tokens; ++i) {
    const uint8_t trained = i % period == 0 ? 0 : 1;
    writer.add({&trained, 1});
  }
  value_or_throw(writer.finish(value_or_throw(value_or_throw(TokenFile::open(prefix)).fingerprint())));
}

// Writes ones, except for one other token at `place`.
inline void write_with_bad_token(const std::string& prefix, int tokens, int place, int32_t bad) {
  auto writer = value_or_throw(TokenFileWriter::create(prefix, TokenType::kU16));
  std::vector<int32_t> document(static_cast<size_t>(tokens), 1);
  document[static_cast<size_t>(place)] = bad;
  writer.add_document(document);
  value_or_throw(writer.finish());
}

}  // namespace tri
