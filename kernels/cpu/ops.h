// The CPU backend: every operation as a plain function that runs when called. It is the reference for all other
// backends. A stream's worker thread calls them; they use one thread (normal_values: all cores) and sum in a fixed
// order, so results are bit-identical.
#pragma once

#include "kernels/ops.h"

namespace tri::cpu {

#define TRI_ROW(name, Args) void name(const Args& args);
TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW

}  // namespace tri::cpu
