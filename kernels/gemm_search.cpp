#include "kernels/gemm_search.h"

#include "kernels/ops.h"

namespace tri {
namespace {

template <class Args>
void ignore(const Args&, Stream&) {}

void keep(const Gemm& g, Stream& recorder) { static_cast<GemmRecorder&>(recorder).add(g); }

const OpTable& recorder_ops() {
  static const OpTable table = [] {
    OpTable ops = {
#define TRI_ROW(name, Args) .name = ignore<Args>,
        TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW
    };
    ops.gemm = keep;
    return ops;
  }();
  return table;
}

}  // namespace

GemmRecorder::GemmRecorder() : Stream("recorder", recorder_ops()) {}

}  // namespace tri
