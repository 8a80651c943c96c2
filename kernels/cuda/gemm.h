// The GEMMs of one GPU: cuBLASLt's handle, plans, choices, autotuning. Safe for concurrent use.
#pragma once

#include <memory>

#include "kernels/cuda/gemm_plan.h"
#include "kernels/gemm_search.h"

namespace tri::cuda {

class GemmEngine final : public GemmSearch {
 public:
  GemmEngine();  // on the current device
  ~GemmEngine() override;

  void multiply(const PlannedGemm& g, CudaStream& stream);
  // Runs the GEMM in this form, whatever was chosen, with the first heuristic; returns false if cuBLASLt cannot.
  bool multiply_as(const PlannedGemm& g, GemmForm form, CudaStream& stream);

  std::map<std::string, AnyGemm> without_choice(std::span<const AnyGemm> gemms) override;
  void search(std::span<const AnyGemm> gemms, Stream& stream) override;
  GemmChoices choices() const override;
  Result<void> take_choices(const GemmChoices& choices) override;
  std::vector<Row> rows() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether Hopper's kernel takes the operands: bf16, rows and addresses of whole 16-byte vectors. A build without code
// for sm_90a has no_hopper.cpp instead.
bool hopper_symmetric_product_takes(const SymmetricProduct& product);
void hopper_symmetric_product(const SymmetricProduct& product, CudaStream& stream);

}  // namespace tri::cuda
