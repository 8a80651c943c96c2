// What stands here for names that only other sections or other trainers have: for messages about unknown keys and
// options.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct OtherName {
  // As Megatron-LM, NeMo, torchtitan, DeepSpeed, transformers, axolotl or torchrun have it; '_' for '-'.
  // "checkpoint.interval": in a section of that name alone.
  std::string_view name;
  // "section.key" here. "--ranks": no field, but an option that some commands have. Empty: neither.
  std::string_view field;
  // For a field: what its value means, if the other program's means something else. Without a field: what replaces it.
  std::string_view remark = {};
};

std::span<const OtherName> other_names();

struct Counterpart {
  std::vector<std::string> fields;  // more than one: several sections have a key of that name
  std::string option;               // "--ranks"
  std::string_view remark;          // as in OtherName

  bool known() const { return !fields.empty() || !remark.empty(); }
};

// Looks up a key of this or another program, with or without its sections: "optimizer.lr", "--num-layers", "steps".
Counterpart counterpart_of(std::string_view name);

// "run.seed or data.seed", "run.steps (optimizer steps: ...)"; of one that has a field.
std::string to_string(const Counterpart& counterpart);

}  // namespace tri
