// What other trainers call the fields of a run config: for messages about keys that are unknown here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tri {

struct OtherName {
  std::string_view name;   // as Megatron-LM, NeMo, torchtitan, transformers or axolotl have it; '_' for '-'
  std::string_view field;  // "section.key" here
};

std::span<const OtherName> other_names();

// The field here of a key of theirs, whatever section it stands in there: "optimizer.lr" and "--num-layers" too; empty:
// none is known.
std::string field_of_other_name(std::string_view key);

}  // namespace tri
