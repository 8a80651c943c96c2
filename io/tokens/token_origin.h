// How token files were made: PREFIX.json next to PREFIX.bin, which `trireme data prepare` writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/base/error.h"

namespace tri {

inline constexpr int64_t kOriginSchema = 1;  // of PREFIX.json

// The tokenizer according to PREFIX.json.
struct TokenOrigin {
  std::string fingerprint;
  std::string tokenizer;  // as given to prepare: "bytes", or a path from the folder where prepare ran
  int vocab = 0;
  std::optional<int64_t> trained_tokens = std::nullopt;  // of PREFIX.mask; none if there is no mask
};
// Returns the contents of PREFIX.json; empty and 0 if there is no such file (data prepared by another program). Fails
// with kFile if storage fails, the file is damaged, or a newer release wrote it.
Result<TokenOrigin> prepared_with(const std::string& prefix);

}  // namespace tri
