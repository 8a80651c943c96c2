// The process's matrix products on its one GPU: plans, choices, search. Thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "kernels/cuda/gemm_plan.h"
#include "kernels/gemm_search.h"

namespace tri::cuda {

class GemmEngine final : public GemmSearch {
 public:
  static GemmEngine& instance();  // lives as long as the process

  void multiply(const Gemm& g, cudaStream_t stream);
  // In this form whatever was chosen, by the first heuristic; false when cuBLASLt cannot. For tests.
  bool multiply_as(const Gemm& g, GemmForm form, cudaStream_t stream);

  void search(std::span<const Gemm> gemms, Stream& stream) override;
  std::string export_choices() const override;
  void import_choices(const std::string& text) override;
  std::vector<Row> rows() const override;

 private:
  GemmEngine();
  ~GemmEngine() override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tri::cuda
