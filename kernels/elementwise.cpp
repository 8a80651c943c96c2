#include "kernels/elementwise.h"

#include "kernels/core/checks.h"

namespace tri {

void check(const Cast& c) {
  require_float("cast", "inp", c.inp);
  require_float("cast", "out", c.out);
  TRI_REQUIRE(c.out.numel() == c.inp.numel(), "cast: {} into {}", c.inp.shape_text(), c.out.shape_text());
}

void check(const Accumulate& a) {
  require_float("accumulate", "inout", a.inout);
  require_float("accumulate", "inp", a.inp);
  TRI_REQUIRE(a.inout.numel() == a.inp.numel() && a.inout.dtype == a.inp.dtype, "accumulate: {} into {}",
              a.inp.shape_text(), a.inout.shape_text());
}

void check(const SumParts& s) {
  require_float("sum_parts", "out", s.out);
  TRI_REQUIRE(s.parts.dims > 1 && s.parts[0] >= 1 && s.parts.numel() == s.parts[0] * s.out.numel() &&
                  s.parts.dtype == s.out.dtype,
              "sum_parts: parts {} into {}", s.parts.shape_text(), s.out.shape_text());
}

}  // namespace tri
