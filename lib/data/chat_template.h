// The file that `trireme data prepare --chat` names: the text around the messages of each role (io/tokens/chat.h).
//
//   begin: ""                    # before the first message
//   separator: "\n"              # after each message
//   roles:
//     system:    {prefix: "<|im_start|>system\n", suffix: "<|im_end|>"}
//     user:      {prefix: "<|im_start|>user\n", suffix: "<|im_end|>"}
//     assistant: {prefix: "<|im_start|>assistant\n", suffix: "<|im_end|>", train: true}
//   names: {tool: user}          # other names of roles in the data
//   trim: false                  # removes white space around the contents of messages
#pragma once

#include <string>
#include <string_view>

#include "io/tokens/chat.h"

namespace tri {

// Reads a template. Fails with kUsage, naming lines, and with an explanation for a chat template of Jinja, which is not
// run.
Result<ChatTemplate> read_chat_template(const std::string& path);
Result<ChatTemplate> parse_chat_template(std::string_view text, const std::string& file_name);

}  // namespace tri
