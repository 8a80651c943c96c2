#include "kernels/elementwise.h"

namespace tri {

void check(const Cast& c) {
  TRI_REQUIRE(c.out.numel() == c.inp.numel(), "cast of {} into {}", c.inp.shape_text(), c.out.shape_text());
}

void check(const Accumulate& a) {
  TRI_REQUIRE(a.inout.numel() == a.inp.numel() && a.inout.dtype == a.inp.dtype, "{} added to {}", a.inp.shape_text(),
              a.inout.shape_text());
}

}  // namespace tri
