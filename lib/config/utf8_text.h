// Text of the command line that a config or a checkpoint will contain.
#pragma once

#include <initializer_list>
#include <string_view>

#include "io/base/error.h"
#include "io/tokens/utf8.h"

namespace tri {

// Fails with kUsage, naming the first of `texts` that is not UTF-8: configs (YAML) and checkpoints (JSON) cannot
// contain it. Check paths with this before work that would be lost.
inline Result<void> check_utf8(std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts)
    if (utf8_prefix(text) < text.size())
      return usage_error("{}: not UTF-8 text, which configs and checkpoints require; give it another name", text);
  return {};
}

}  // namespace tri
