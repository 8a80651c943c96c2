#include "lib/model/parameter_names.h"

#include "io/base/error.h"

namespace tri {
namespace {

constexpr std::string_view kWeight = "/weight", kBias = "/bias";

std::string name_of(std::string_view module, int layer, std::string_view end) {
  TRI_REQUIRE(of_layer(module) == (layer >= 0), "module {} does not belong to layer {}", module, layer);
  return fmt::format(fmt::runtime(module), layer).append(end);
}

}  // namespace

bool of_layer(std::string_view module) { return module.find("{}") != std::string_view::npos; }

std::string weight_of(std::string_view module, int layer) { return name_of(module, layer, kWeight); }

std::string bias_of(std::string_view module, int layer) { return name_of(module, layer, kBias); }

bool is_bias(std::string_view parameter) { return parameter.ends_with(kBias); }

}  // namespace tri
