// OpenBLAS for the CPU kernels.
#pragma once

#include <cblas.h>

namespace tri::cpu {

// One thread per stream: the ranks of a node already share its cores, and sums keep their order.
inline void use_one_blas_thread() { [[maybe_unused]] static const bool once = (openblas_set_num_threads(1), true); }

}  // namespace tri::cpu
