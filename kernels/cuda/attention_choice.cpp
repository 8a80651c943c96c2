// Which attention kernel takes a call: cuDNN's where the build has it and it knows the shape (measured faster at every
// shape it takes), the built-in one elsewhere.
#include "kernels/cuda/builtin_attention.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/ops.h"

namespace tri::cuda {
namespace {

template <class Args>
bool use_cudnn(const Args& a) {
  if (a.kernel == AttentionKernel::kBuiltin) return false;
  const int64_t head_size = a.qkv[1] / (int64_t{a.num_kv_heads} * (a.group + 2));
  const bool takes = cudnn_takes(a.qkv.dtype, head_size, a.group);
  if (a.kernel == AttentionKernel::kCudnn && !takes)
    throw Fatal(ExitCode::kDevice,
                fmt::format("model.attention: cudnn does not take {} with head size {} and {} query heads a key/value "
                            "head in this build; set model.attention: auto",
                            enum_name(a.qkv.dtype), head_size, a.group));
  return takes;
}

}  // namespace

void attention_forward(const AttentionForward& args, cudaStream_t stream) {
  use_cudnn(args) ? cudnn_attention_forward(args, stream) : builtin_attention_forward(args, stream);
}

void attention_backward(const AttentionBackward& args, cudaStream_t stream) {
  use_cudnn(args) ? cudnn_attention_backward(args, stream) : builtin_attention_backward(args, stream);
}

}  // namespace tri::cuda
