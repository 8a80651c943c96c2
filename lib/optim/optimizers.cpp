#include "lib/optim/optimizers.h"

#include <algorithm>

#include "io/base/error.h"

namespace tri {

void update_adamw(const Update&);  // adamw.cpp
void update_lamb(const Update&);   // lamb.cpp

const std::vector<OptimizerRow>& optimizers() {
  static const std::vector<OptimizerRow> rows = {
      {OptimizerKind::kAdamW, {"exp_avg", "exp_avg_sq"}, 0, update_adamw},
      {OptimizerKind::kLamb, {"exp_avg", "exp_avg_sq"}, 2, update_lamb},
  };
  return rows;
}

const OptimizerRow& optimizer_row(OptimizerKind kind) {
  const auto row =
      std::find_if(optimizers().begin(), optimizers().end(), [&](const auto& r) { return r.kind == kind; });
  TRI_REQUIRE(row != optimizers().end(), "optimizer {} has no row", enum_name(kind));
  return *row;
}

int64_t optimizer_state_bytes(const OptimizerConfig& config) {
  return static_cast<int64_t>(optimizer_row(config.name).state.size() * dtype_bytes(config.moments));
}

}  // namespace tri
