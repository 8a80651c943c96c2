// Element types of tensors in files (checkpoints, safetensors), little-endian. There are more than in Dtype
// (kernels/core/dtype.h), the types that kernels compute with. Checkpoints contain the names, so they never change.
#pragma once

#include <cstdint>

#include "io/base/enum_names.h"

namespace tri {

enum class StoredType { kF32, kBf16, kF16, kI64, kI32, kU8 };

template <>
struct EnumNames<StoredType> {
  static constexpr std::array table{
      std::pair{StoredType::kF32, std::string_view("f32")}, std::pair{StoredType::kBf16, std::string_view("bf16")},
      std::pair{StoredType::kF16, std::string_view("f16")}, std::pair{StoredType::kI64, std::string_view("i64")},
      std::pair{StoredType::kI32, std::string_view("i32")}, std::pair{StoredType::kU8, std::string_view("u8")}};
};

constexpr int64_t element_bytes(StoredType type) {
  switch (type) {
    case StoredType::kI64:
      return 8;
    case StoredType::kF32:
    case StoredType::kI32:
      return 4;
    case StoredType::kBf16:
    case StoredType::kF16:
      return 2;
    case StoredType::kU8:
      return 1;
  }
  return 0;
}

}  // namespace tri
