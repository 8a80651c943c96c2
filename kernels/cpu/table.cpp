#include "kernels/cpu/device.h"
#include "kernels/cpu/ops.h"

namespace tri {

const OpTable& cpu_ops() {
  static const OpTable table = {
#define TRI_ROW(name, Args) \
  .name = [](const Args& args, Stream& stream) { cpu_stream(stream).submit([args] { cpu::name(args); }); },
      TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW
  };
  return table;
}

}  // namespace tri
