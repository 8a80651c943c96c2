// cuDNN's fused attention, through the header-only cudnn-frontend. The file that defines it is picked by CMake:
// cudnn_attention.cpp, or no_cudnn.cpp where cuDNN or its frontend was not found.
#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"

namespace tri::cuda {

bool built_with_cudnn();

// One GPU's attention graphs, for shapes that cudnn_attention_takes() (kernels/attention.h). A graph is built and its
// plan chosen at a shape's first call; later calls only execute it. Thread-safe.
class CudnnAttention {
 public:
  CudnnAttention();  // on the current device
  ~CudnnAttention();

  // Whether cuDNN makes graphs for the call's executions, of which the last may have fewer sequences: tried once a
  // shape. If not, its words.
  Result<void> prepare(const AttentionForward& args);
  Result<void> prepare(const AttentionBackward& args);
  // Bytes in addition to the operands. The shape is prepared.
  int64_t workspace_bytes(const AttentionForward& args);
  int64_t workspace_bytes(const AttentionBackward& args);
  // Enqueues a call whose shape is prepared.
  void forward(const AttentionForward& args, CudaStream& stream);
  void backward(const AttentionBackward& args, CudaStream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tri::cuda
