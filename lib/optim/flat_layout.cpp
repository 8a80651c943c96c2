#include "lib/optim/flat_layout.h"

#include <algorithm>

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
  struct Kind {
    GradScope scope;
    bool matrices;
    bool codes;
    bool operator==(const Kind&) const = default;
  };
  const auto kind_of = [&](const ParamSpec& spec) {
    const GradScope scope = scope_of(spec);
    return Kind{scope, scope == GradScope::kSplit && spec.decay, spec.fp8_slot >= 0};
  };
  // Whether matrices that are kept as codes are used between the two.
  const auto codes_between = [&](size_t first, size_t last) {
    return std::any_of(specs.begin() + static_cast<int64_t>(first), specs.begin() + static_cast<int64_t>(last),
                       [](const ParamSpec& spec) { return spec.fp8_slot >= 0; });
  };
  for (const Kind kind : {Kind{GradScope::kSplit, true, true}, Kind{GradScope::kSplit, true, false},
                          Kind{GradScope::kSplit, false, false}, Kind{GradScope::kTied, false, false},
                          Kind{GradScope::kReplicated, false, false}}) {
    const Bucket empty{
        .scope = kind.scope, .matrices = kind.matrices, .codes = kind.codes, .first = 0, .size = 0, .parameters = {}};
    Bucket open = empty;
    open.first = layout.size;
    const auto close = [&] {
      if (open.parameters.empty()) return;
      open.size = round_up(open.size, int64_t{dp} * kBlock);
      layout.size = open.first + open.size;
      layout.buckets.push_back(open);
      open = empty;
      open.first = layout.size;
    };
    for (size_t i = specs.size(); i-- > 0;) {
      if (kind_of(specs[i]) != kind) continue;
      if (kind.matrices && !kind.codes && !open.parameters.empty() &&
          codes_between(i, static_cast<size_t>(open.parameters.back())))
        close();
      layout.offset[i] = open.first + open.size;
      layout.bucket_of[i] = static_cast<int>(layout.buckets.size());
      open.parameters.push_back(static_cast<int>(i));
      open.size += round_up(specs[i].local_numel(tp), kBlock);
      if (open.size >= bucket_elements) close();
    }
    close();
    if (kind.codes) layout.codes = layout.size;
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
