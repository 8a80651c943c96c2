// The names of all parameters: "layers/0/attention/qkv/weight". They are the same on every layout of ranks; start
// values, checkpoints and models of other formats refer to parameters by them.
#pragma once

#include <string>
#include <string_view>

namespace tri {

// Modules: each holds a weight and perhaps a bias. "{}" is the layer's index in the whole model.
namespace modules {

inline constexpr std::string_view kTokens = "embedding/tokens";  // also the head's, if they are tied
inline constexpr std::string_view kPositions = "embedding/positions";
inline constexpr std::string_view kNorm1 = "layers/{}/norm1";
inline constexpr std::string_view kQkv = "layers/{}/attention/qkv";
inline constexpr std::string_view kQueryNorm = "layers/{}/attention/query_norm";
inline constexpr std::string_view kKeyNorm = "layers/{}/attention/key_norm";
inline constexpr std::string_view kProj = "layers/{}/attention/proj";
inline constexpr std::string_view kPostNorm1 = "layers/{}/post_norm1";  // of attention's output
inline constexpr std::string_view kNorm2 = "layers/{}/norm2";
inline constexpr std::string_view kFc1 = "layers/{}/mlp/fc1";
inline constexpr std::string_view kFc2 = "layers/{}/mlp/fc2";
inline constexpr std::string_view kRouter = "layers/{}/mlp/router";
inline constexpr std::string_view kExpertsFc1 = "layers/{}/mlp/experts/fc1";  // of all experts in one tensor
inline constexpr std::string_view kExpertsFc2 = "layers/{}/mlp/experts/fc2";
inline constexpr std::string_view kSharedFc1 = "layers/{}/mlp/shared/fc1";
inline constexpr std::string_view kSharedFc2 = "layers/{}/mlp/shared/fc2";
inline constexpr std::string_view kPostNorm2 = "layers/{}/post_norm2";  // of the MLP's output
inline constexpr std::string_view kFinalNorm = "final_norm";
inline constexpr std::string_view kHead = "head";

}  // namespace modules

inline constexpr int kNoLayer = -1;  // of a module outside the layers

bool of_layer(std::string_view module);  // every layer has one
std::string weight_of(std::string_view module, int layer = kNoLayer);
std::string bias_of(std::string_view module, int layer = kNoLayer);
bool is_bias(std::string_view parameter);

}  // namespace tri
