// Selects the attention kernels of a call: attention_path() (kernels/attention.h) decides by shape. Under `auto`,
// cuDNN's graph is tried once per shape; if cuDNN refuses it, the project's kernels for this GPU run instead.
#include "io/base/log.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scalar_attention.h"

namespace tri::cuda {
namespace {

template <class Args>
AttentionPath path_of(const Args& a, Pass pass, Context& context) {
  const AttentionShape shape = attention_shape(a);
  GpuProperties gpu = context.properties();
  AttentionPath path = value_or_throw(attention_path(a.kernel, pass, shape, gpu));
  if (path == AttentionPath::kCudnn && a.kernel == AttentionKernel::kAuto) {
    if (const Result<void> prepared = context.cudnn().prepare(a); !prepared) {
      gpu.has_cudnn = false;
      path = value_or_throw(attention_path(a.kernel, pass, shape, gpu));
      if (context.first_time(prepared.error().message))
        log_warn_alike("model.attention: auto: {}; using the built-in {} instead", prepared.error().message,
                       enum_name(path));
    }
  }
  return path;
}

template <class Args>
bool takes_hoppers(const Args& args, Pass pass, CudaStream& stream) {
  const int64_t head_size = attention_shape(args).head_size;
  return flash_attention_is_hoppers(stream.context().properties()) && fills_tiles(head_size) &&
         (pass == Pass::kForward || head_size <= kHopperBackwardMaxHeadSize);
}

}  // namespace

void flash_attention_forward(const AttentionForward& args, CudaStream& stream) {
  if (takes_hoppers(args, Pass::kForward, stream)) return hopper_attention_forward(args, stream);
  mma_attention_forward(args, stream);
}

void flash_attention_backward(const AttentionBackward& args, CudaStream& stream) {
  if (takes_hoppers(args, Pass::kBackward, stream)) return hopper_attention_backward(args, stream);
  mma_attention_backward(args, stream);
}

void attention_forward(const AttentionForward& args, CudaStream& stream) {
  switch (path_of(args, Pass::kForward, stream.context())) {
    case AttentionPath::kScalar:
      return scalar_attention_forward(args, stream);
    case AttentionPath::kFlash:
      return flash_attention_forward(args, stream);
    case AttentionPath::kCudnn:
      return stream.context().cudnn().forward(args, stream);
  }
}

void attention_backward(const AttentionBackward& args, CudaStream& stream) {
  switch (path_of(args, Pass::kBackward, stream.context())) {
    case AttentionPath::kScalar:
      return scalar_attention_backward(args, stream);
    case AttentionPath::kFlash:
      return flash_attention_backward(args, stream);
    case AttentionPath::kCudnn:
      return stream.context().cudnn().backward(args, stream);
  }
}

}  // namespace tri::cuda
