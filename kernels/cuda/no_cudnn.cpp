#include "kernels/cuda/cudnn_attention.h"

namespace tri::cuda {
namespace {

Error absent() { return {"this trireme was built without cuDNN", ExitCode::kDevice}; }

}  // namespace

struct CudnnAttention::State {};

bool built_with_cudnn() { return false; }

CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() = default;

Result<void> CudnnAttention::prepare(const AttentionForward&) { return absent(); }
Result<void> CudnnAttention::prepare(const AttentionBackward&) { return absent(); }
int64_t CudnnAttention::workspace_bytes(const AttentionForward&) { return 0; }
int64_t CudnnAttention::workspace_bytes(const AttentionBackward&) { return 0; }
void CudnnAttention::forward(const AttentionForward&, CudaStream&) { value_or_throw(Result<void>(absent())); }
void CudnnAttention::backward(const AttentionBackward&, CudaStream&) { value_or_throw(Result<void>(absent())); }

}  // namespace tri::cuda
