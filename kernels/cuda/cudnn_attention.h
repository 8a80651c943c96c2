// cuDNN's fused attention, through the header-only cudnn-frontend. CMake selects the file that defines it:
// cudnn_attention.cpp, or no_cudnn.cpp if cuDNN or its frontend was not found.
#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

bool built_with_cudnn();

// One GPU's attention graphs, for shapes that cudnn_attention_takes() (kernels/attention.h). The first call with a
// shape builds its graph and chooses a plan; later calls only execute it. Safe for concurrent use.
class CudnnAttention {
 public:
  CudnnAttention();  // on the current device
  ~CudnnAttention();

  // Returns whether cuDNN builds graphs for the call's executions, the last of which may have fewer sequences; tries
  // once per shape. If not, returns its error text.
  Result<void> prepare(const AttentionForward& args);
  Result<void> prepare(const AttentionBackward& args);
  // Returns the bytes needed in addition to the operands. The shape must be prepared.
  int64_t workspace_bytes(const AttentionForward& args);
  int64_t workspace_bytes(const AttentionBackward& args);
  // Enqueues a call whose shape must be prepared.
  void forward(const AttentionForward& args, CudaStream& stream);
  void backward(const AttentionBackward& args, CudaStream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tri::cuda
