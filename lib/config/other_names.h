// The counterparts of names that only other sections or other trainers use, for messages about unknown keys and
// options.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct OtherName {
  // As in Megatron-LM, NeMo, torchtitan, DeepSpeed, transformers, axolotl or torchrun, with '_' for '-'.
  // "checkpoint.interval" matches only in a section of that name.
  std::string_view name;
  // "section.key" here. "--ranks": not a field, but an option that some commands have. Empty: neither.
  std::string_view field;
  // For a field: what its value means if that differs from the other program. Without a field: what replaces it.
  std::string_view remark = {};
};

std::span<const OtherName> other_names();  // static

struct Counterpart {
  std::vector<std::string> fields;  // more than one: several sections have a key of that name
  std::string option;               // "--ranks"
  std::string_view remark;          // as in OtherName

  bool known() const { return !fields.empty() || !remark.empty(); }
};

// Looks up a key of this or another program, with or without its sections: "optimizer.lr", "--num-layers", "steps".
Counterpart counterpart_of(std::string_view name);

// Returns "run.seed or data.seed", "run.steps (optimizer steps: ...)"; requires a counterpart with a field.
std::string to_string(const Counterpart& counterpart);

}  // namespace tri
