// Which attention kernel takes a call. auto: the fastest that takes it, as measured (kernels/README.md): cuDNN's, else
// our own on tensor cores, else the plain one. builtin: our own.
#include <type_traits>

#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plain_attention.h"

namespace tri::cuda {
namespace {

enum class Taker { kPlain, kFlash, kCudnn };

template <class Args>
Taker taker_of(const Args& a) {
  const int64_t head_size = a.qkv[1] / (int64_t{a.num_kv_heads} * (a.group + 2));
  const bool cudnn = cudnn_takes(a.qkv.dtype, head_size, a.group);
  if (a.kernel == AttentionKernel::kCudnn && !cudnn)
    throw Fatal(ExitCode::kDevice,
                fmt::format("model.attention: cudnn does not take {} with head size {} and {} query heads a key/value "
                            "head in this build; set model.attention: auto",
                            enum_name(a.qkv.dtype), head_size, a.group));
  const bool backward = std::is_same_v<Args, AttentionBackward>;
  // cuDNN's deterministic backward goes over the blocks outside the window as well.
  const bool slow = backward && a.kernel == AttentionKernel::kAuto && a.window > 0 && 2 * a.window <= a.seq_len &&
                    flash_takes(a.qkv.dtype, head_size);
  if (cudnn && !slow && a.kernel != AttentionKernel::kBuiltin) return Taker::kCudnn;
  return flash_takes(a.qkv.dtype, head_size) ? Taker::kFlash : Taker::kPlain;
}

}  // namespace

void attention_forward(const AttentionForward& args, cudaStream_t stream) {
  constexpr void (*kTable[])(const AttentionForward&, cudaStream_t) = {plain_attention_forward, flash_attention_forward,
                                                                       cudnn_attention_forward};
  kTable[static_cast<int>(taker_of(args))](args, stream);
}

void attention_backward(const AttentionBackward& args, cudaStream_t stream) {
  constexpr void (*kTable[])(const AttentionBackward&, cudaStream_t) = {
      plain_attention_backward, flash_attention_backward, cudnn_attention_backward};
  kTable[static_cast<int>(taker_of(args))](args, stream);
}

}  // namespace tri::cuda
