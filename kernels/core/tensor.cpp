#include "kernels/core/tensor.h"

namespace tri {

std::string Tensor::shape_text() const {
  std::string text = "(";
  for (int d = 0; d < dims; ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + ") " + std::string(enum_name(dtype));
}

}  // namespace tri
