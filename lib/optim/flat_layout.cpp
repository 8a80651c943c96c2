#include "lib/optim/flat_layout.h"

#include <algorithm>
#include <tuple>

#include "kernels/core/dims.h"

namespace tri {
namespace {

// The properties that all parameters of a bucket share.
struct Kind {
  AxisSet reduced;  // without axes of one rank, along which a gradient is always complete
  bool matrices, quantized, muon, undelayed;

  // Quantized weights come first. Buckets that are complete after their own collectives come next: matrices before
  // small parameters, Muon's before others. Buckets that are also summed over slower axes follow.
  auto order() const {
    const AxisSet remaining = reduced - kReducingAxes;
    return std::tuple(!quantized, !remaining.empty(), ~remaining.bits(), ~reduced.bits(), !matrices, !muon, !undelayed);
  }
  bool operator==(const Kind&) const = default;
};

Kind kind_of(const ParamSpec& spec, const Mesh& mesh) {
  AxisSet reduced = mesh.divided(spec.reduced), differs = reduced | spec.sharded;
  if ((kRowAxes - (spec.reduced | spec.sharded)).empty()) differs = differs | kBucketAxes;  // kRowAxes contain them
  // Ranks along an axis process other tokens, so their copies of a parameter would drift apart without a sum.
  TRI_REQUIRE((mesh.divided(kBucketAxes) - differs).empty(), "{} is sharded or reduced over {}, but not over {}",
              spec.name, to_string(differs), to_string(mesh.divided(kBucketAxes) - differs));
  return {reduced, (reduced - kReducingAxes).empty() && spec.decay, spec.fp8_slot >= 0, spec.muon, spec.undelayed};
}

// Returns the kinds of `specs` in bucket order.
std::vector<Kind> kinds_of(const std::vector<ParamSpec>& specs, const Mesh& mesh) {
  std::vector<Kind> kinds;
  for (const ParamSpec& spec : specs)
    if (const Kind kind = kind_of(spec, mesh); std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  std::ranges::sort(kinds, {}, &Kind::order);
  return kinds;
}

}  // namespace

AxisSet slicing_axes(const ParamSpec& spec, const Mesh& mesh) {
  const AxisSet reduced = mesh.divided(spec.reduced);
  return reduced - (reduced - kReducingAxes);
}

FlatLayout make_flat_layout(const std::vector<ParamSpec>& specs, const Mesh& mesh, int64_t bucket_elements) {
  FlatLayout layout;
  layout.offset.resize(specs.size());
  layout.bucket_of.resize(specs.size());
  // Whether the model uses matrices with buckets before those of `kind` between the two parameters.
  const auto others_between = [&](const Kind& kind, size_t first, size_t last) {
    return std::any_of(specs.begin() + static_cast<int64_t>(first), specs.begin() + static_cast<int64_t>(last),
                       [&](const ParamSpec& spec) { return spec.fp8_slot >= 0 || (spec.muon && !kind.muon); });
  };
  for (const Kind& kind : kinds_of(specs, mesh)) {
    const Bucket empty{.reduced = kind.reduced,
                       .matrices = kind.matrices,
                       .quantized = kind.quantized,
                       .muon = kind.muon,
                       .first = 0,
                       .size = 0,
                       .parameters = {}};
    Bucket open = empty;
    open.first = layout.size;
    const auto close = [&] {
      if (open.parameters.empty()) return;
      open.size = round_up(open.size, int64_t{mesh.joint_axis(open.sharded_over()).size} * kBlock);
      layout.size = open.first + open.size;
      layout.buckets.push_back(open);
      open = empty;
      open.first = layout.size;
    };
    for (size_t i = specs.size(); i-- > 0;) {
      if (kind_of(specs[i], mesh) != kind) continue;
      if (kind.matrices && !kind.quantized && !open.parameters.empty() &&
          others_between(kind, i, static_cast<size_t>(open.parameters.back())))
        close();
      layout.offset[i] = open.first + open.size;
      layout.bucket_of[i] = static_cast<int>(layout.buckets.size());
      open.parameters.push_back(static_cast<int>(i));
      open.size += round_up(specs[i].local_numel(mesh), kBlock);
      if (open.size >= bucket_elements) close();
    }
    close();
    if (kind.quantized) layout.quantized = layout.size;
  }
  return layout;
}

std::vector<SliceRange> slice_ranges(const FlatLayout& layout, const Mesh& mesh, Slices slices) {
  std::vector<SliceRange> ranges;
  int64_t place = 0;
  for (const Bucket& bucket : layout.buckets) {
    const Axis part = slices == Slices::kSharded ? mesh.joint_axis(bucket.sharded_over()) : Axis{};
    const int64_t size = bucket.size / part.size;
    ranges.push_back({.begin = bucket.first + part.rank * size, .place = place, .size = size});
    place += size;
  }
  return ranges;
}

std::vector<int> block_owners(const FlatLayout& layout, const std::vector<ParamSpec>& specs, const Mesh& mesh) {
  std::vector<int> owners(static_cast<size_t>(layout.size / kBlock), -1);
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t first = layout.offset[i] / kBlock;
    const int64_t count = ceil_div(specs[i].local_numel(mesh), kBlock);
    for (int64_t b = first; b < first + count; ++b) owners[static_cast<size_t>(b)] = static_cast<int>(i);
  }
  return owners;
}

}  // namespace tri
