// The backends, and the variants of the model family that kernels implement.
#pragma once

#include "io/base/enum_names.h"

namespace tri {

enum class DeviceKind { kCpu, kCuda };
enum class Norm { kLayerNorm, kRmsNorm };
enum class Activation { kGelu, kGeluErf, kSwiglu, kGeglu };
// Whether the activation multiplies two inputs: gate and up.
constexpr bool is_gated(Activation kind) { return kind == Activation::kSwiglu || kind == Activation::kGeglu; }
enum class AttentionKernel { kAuto, kBuiltin, kCudnn };  // CUDA only; the CPU has one kernel
enum class Pass { kForward, kBackward };
enum class QkvOrder { kGrouped, kByKind };                  // of the heads in a QKV row: qkv_row.h
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };  // formulas: kernels/rope.h

template <>
struct EnumNames<DeviceKind> {
  static constexpr std::array table{std::pair{DeviceKind::kCpu, std::string_view("cpu")},
                                    std::pair{DeviceKind::kCuda, std::string_view("cuda")}};
};
template <>
struct EnumNames<Norm> {
  static constexpr std::array table{std::pair{Norm::kLayerNorm, std::string_view("layernorm")},
                                    std::pair{Norm::kRmsNorm, std::string_view("rmsnorm")}};
};
template <>
struct EnumNames<Activation> {
  static constexpr std::array table{std::pair{Activation::kGelu, std::string_view("gelu")},
                                    std::pair{Activation::kGeluErf, std::string_view("gelu_erf")},
                                    std::pair{Activation::kSwiglu, std::string_view("swiglu")},
                                    std::pair{Activation::kGeglu, std::string_view("geglu")}};
};
template <>
struct EnumNames<AttentionKernel> {
  static constexpr std::array table{std::pair{AttentionKernel::kAuto, std::string_view("auto")},
                                    std::pair{AttentionKernel::kBuiltin, std::string_view("builtin")},
                                    std::pair{AttentionKernel::kCudnn, std::string_view("cudnn")}};
};
template <>
struct EnumNames<QkvOrder> {
  static constexpr std::array table{std::pair{QkvOrder::kGrouped, std::string_view("grouped")},
                                    std::pair{QkvOrder::kByKind, std::string_view("by_kind")}};
};
template <>
struct EnumNames<RopeScaling> {
  static constexpr std::array table{std::pair{RopeScaling::kNone, std::string_view("none")},
                                    std::pair{RopeScaling::kLinear, std::string_view("linear")},
                                    std::pair{RopeScaling::kLlama3, std::string_view("llama3")},
                                    std::pair{RopeScaling::kYarn, std::string_view("yarn")}};
};

}  // namespace tri
