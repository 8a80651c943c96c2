// Random numbers for the rounding of bf16 moments: for an element of the global tensor they are equal on every layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "io/base/random.h"
#include "kernels/core/dims.h"
#include "kernels/cpu/device.h"
#include "kernels/moment_rounding.h"
#include "lib/optim/parameter_memory.h"

namespace tri {
namespace {

Config config_of(int hidden, int tp, int pp, int dp, int chunks, int zero) {
  Config c;
  c.run.seed = 5;
  c.model = {.layers = 4, .hidden = hidden, .heads = 4, .ffn_hidden = 2 * hidden};
  c.model.vocab = 131;  // padded
  c.model.seq_len = 8;
  c.optimizer.moments = Dtype::kBF16;
  c.data.global_batch = 4;
  c.parallel = {.tp = tp, .pp = pp, .dp = dp, .chunks = chunks};
  c.parallel.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  c.parallel.zero = zero;
  c.parallel.bucket_elements = dp == 2 ? 3000 : 100000;
  c.parallel.dp_transfers = Transfers::kCollectives;
  return value_or_throw(resolve_config(c, tp * pp * dp));
}

// Calls f(parameter, element of its share, its draws, quad) for the first element of each quad of this rank's slices.
template <class F>
void for_quads(const Config& config, const Mesh& mesh, F f) {
  const auto device = make_cpu_device();
  const auto compute = device->make_stream("compute");
  Arena measuring;
  allocate_store(config, mesh, measuring);
  Arena arena(*device, measuring.used());
  const ParameterMemory memory(config, mesh, allocate_store(config, mesh, arena), *compute);
  std::map<std::string, const Parameter*> parameters;
  for (const auto& chunk : memory.parameters())
    for (const Parameter& parameter : chunk) parameters[parameter.spec.name] = &parameter;
  const auto* draws = reinterpret_cast<const TensorDraws*>(memory.tensors().draws.as<int32_t>());
  for (const BucketSlice& slice : memory.slices())
    for (int64_t block = 0; block < slice.block_tensor.numel(); ++block) {
      const int32_t tensor = slice.block_tensor.as<int32_t>()[block];
      if (tensor < 0) continue;
      const Parameter& parameter = *parameters.at(memory.tensor_names()[static_cast<size_t>(tensor)]);
      const TensorDraws& of_tensor = draws[tensor];
      const int64_t first = (slice.first_block + block - of_tensor.first_block) * kBlock;
      for (int64_t e = first; e < std::min(first + kBlock, parameter.weight.numel()); e += 4)
        f(parameter.spec, e, of_tensor, of_tensor.global_quad(static_cast<uint32_t>(e / 4)));
    }
}

// Returns the index in the global tensor, row-major.
int64_t global_element(const ParamSpec& spec, Axis tp, int64_t element) {
  const std::vector<int64_t> local = spec.local_shape(tp.size);
  std::vector<int64_t> at(local.size());
  for (size_t d = local.size(); d-- > 0; element /= local[d]) at[d] = element % local[d];
  if (spec.split_dim >= 0)
    at[static_cast<size_t>(spec.split_dim)] += tp.rank * local[static_cast<size_t>(spec.split_dim)];
  int64_t global = 0;
  for (size_t d = 0; d < at.size(); ++d) global = global * spec.shape[d] + at[d];
  return global;
}

TEST(MomentDraws, are_those_of_the_global_element_on_any_layout) {
  for (const auto& [tp, pp, dp, chunks, zero] : {std::tuple{1, 1, 1, 1, 0},
                                                 {1, 1, 2, 1, 0},
                                                 {1, 1, 2, 1, 1},
                                                 {1, 1, 4, 1, 2},
                                                 {2, 1, 1, 1, 1},
                                                 {4, 1, 1, 1, 1},
                                                 {1, 2, 1, 2, 1},
                                                 {2, 2, 2, 1, 1},
                                                 {2, 2, 2, 2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {} dp {} chunks {} zero {}", tp, pp, dp, chunks, zero));
    const Config config = config_of(32, tp, pp, dp, chunks, zero);
    std::map<std::string, std::set<int64_t>> covered;
    for (int rank = 0; rank < tp * pp * dp; ++rank) {
      const Mesh mesh = make_mesh(rank, {{"tp", tp}, {"dp", dp}, {"pp", pp}});
      for_quads(config, mesh, [&](const ParamSpec& spec, int64_t element, const TensorDraws& draws, int64_t quad) {
        ASSERT_EQ(draws.key(), derive_key(5, "optimizer/" + spec.name));
        ASSERT_EQ(4 * quad, global_element(spec, mesh.axis("tp"), element)) << spec.name << ", element " << element;
        covered[spec.name].insert(quad);
      });
    }
    for (const ParamSpec& spec : model_parameters(config))
      EXPECT_EQ(static_cast<int64_t>(covered[spec.name].size()), ceil_div(spec.numel(), 4)) << spec.name;
  }
}

// A row of 24 over four ranks: runs of six elements are not whole quads. Such shares are treated as separate tensors;
// all others draw as usual.
TEST(MomentDraws, shares_of_odd_widths_draw_their_own) {
  const auto is_odd = [](const ParamSpec& spec) {
    const std::vector<int64_t> local = spec.local_shape(4);
    int64_t run = 1;
    for (size_t d = local.size(); d-- > static_cast<size_t>(std::max(spec.split_dim, 0));) run *= local[d];
    return spec.split_dim >= 0 && run % 4 != 0;
  };
  const Config config = config_of(24, 4, 1, 1, 1, 1);
  std::map<std::string, std::set<uint64_t>> keys;
  for (int rank = 0; rank < 4; ++rank)
    for_quads(config, make_mesh(rank, {{"tp", 4}}),
              [&](const ParamSpec& spec, int64_t element, const TensorDraws& draws, int64_t quad) {
                keys[spec.name].insert(draws.key());
                if (is_odd(spec)) {
                  ASSERT_EQ(4 * quad, element) << spec.name;
                }
              });
  int own = 0;
  for (const ParamSpec& spec : model_parameters(config)) {
    EXPECT_EQ(keys[spec.name].size(), is_odd(spec) ? 4u : 1u) << spec.name;
    own += is_odd(spec);
  }
  EXPECT_GT(own, 0);
}

}  // namespace
}  // namespace tri
