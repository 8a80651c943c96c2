#include "lib/optim/flat_layout.h"

#include "kernels/core/dims.h"

namespace tri {

FlatLayout make_flat_layout(const std::vector<ParamSpec>& specs, int tp, int dp, int64_t bucket_elements) {
  FlatLayout layout;
  layout.offset.resize(specs.size());
  layout.bucket_of.resize(specs.size());
  // With tp 1 a replicated gradient is complete like any other.
  const auto scope_of = [&](const ParamSpec& spec) {
    return tp == 1 && spec.scope == GradScope::kReplicated ? GradScope::kSplit : spec.scope;
  };
  for (const GradScope scope : {GradScope::kSplit, GradScope::kTied, GradScope::kReplicated}) {
    Bucket open{.scope = scope, .first = layout.size, .size = 0, .parameters = {}};
    const auto close = [&] {
      if (open.parameters.empty()) return;
      open.size = round_up(open.size, int64_t{dp} * kBlock);
      layout.size = open.first + open.size;
      layout.buckets.push_back(open);
      open = {.scope = scope, .first = layout.size, .size = 0, .parameters = {}};
    };
    for (size_t i = specs.size(); i-- > 0;) {
      if (scope_of(specs[i]) != scope) continue;
      layout.offset[i] = open.first + open.size;
      layout.bucket_of[i] = static_cast<int>(layout.buckets.size());
      open.parameters.push_back(static_cast<int>(i));
      open.size += round_up(specs[i].local_numel(tp), kBlock);
      if (open.size >= bucket_elements) close();
    }
    close();
  }
  return layout;
}

std::vector<int> block_owners(const FlatLayout& layout, const std::vector<ParamSpec>& specs, int tp) {
  std::vector<int> owners(static_cast<size_t>(layout.size / kBlock), -1);
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t first = layout.offset[i] / kBlock;
    const int64_t count = ceil_div(specs[i].local_numel(tp), kBlock);
    for (int64_t b = first; b < first + count; ++b) owners[static_cast<size_t>(b)] = static_cast<int>(i);
  }
  return owners;
}

}  // namespace tri
