// Types of tensor elements in files, little-endian. (Kernels have their own Dtype; files may hold more.)
#pragma once

#include <cstdint>

#include "io/base/enum_names.h"

namespace tri {

enum class ElementType { kF32, kBf16, kF16, kI64, kI32, kU8 };

template <>
struct EnumNames<ElementType> {
  static constexpr std::array table{
      std::pair{ElementType::kF32, std::string_view("f32")}, std::pair{ElementType::kBf16, std::string_view("bf16")},
      std::pair{ElementType::kF16, std::string_view("f16")}, std::pair{ElementType::kI64, std::string_view("i64")},
      std::pair{ElementType::kI32, std::string_view("i32")}, std::pair{ElementType::kU8, std::string_view("u8")}};
};

constexpr int64_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kI64:
      return 8;
    case ElementType::kF32:
    case ElementType::kI32:
      return 4;
    case ElementType::kBf16:
    case ElementType::kF16:
      return 2;
    case ElementType::kU8:
      return 1;
  }
  return 0;
}

}  // namespace tri
