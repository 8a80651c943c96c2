#include "kernels/random.h"

#include "kernels/core/checks.h"

namespace tri {

void check(const NormalValues& v) {
  require_float("normal_values", "out", v.out);
  TRI_REQUIRE(v.begin >= 0 && v.block > 0 && v.offset >= 0 && v.offset <= v.stride - v.block,
              "normal_values: {} from {} on in blocks of {} at {}, one every {}", v.out.shape_text(), v.begin, v.block,
              v.offset, v.stride);
}

}  // namespace tri
