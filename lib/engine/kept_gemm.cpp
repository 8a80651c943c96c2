#include "lib/engine/kept_gemm.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/retry.h"
#include "lib/config/flat.h"

namespace tri {
namespace {

constexpr std::string_view kGpuKinds = "# GPUs of compute capability ";

}  // namespace

std::string kinds_of(const std::vector<std::optional<GpuProperties>>& gpus) {
  std::set<std::string> kinds;
  for (const auto& gpu : gpus)
    if (gpu)
      kinds.insert(fmt::format("{}.{} with {} multiprocessors", gpu->capability / 10, gpu->capability % 10,
                               gpu->num_multiprocessors));
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : ", ") + kind;
  return text;
}

std::string gpu_kinds_line(const std::string& kinds) {
  return kinds.empty() ? "" : fmt::format("{}{}\n", kGpuKinds, kinds);
}

std::optional<KeptGemm> kept_gemm(const Config& config) {
  const auto read = [&](const char* name) {
    auto text = retried({}, [&]() -> Result<std::string> {
      const auto file = InputFile::open(config.run.dir + "/" + name);
      if (!file) return file.error();
      std::string all(static_cast<size_t>(file.value().bytes()), '\0');
      if (auto done = file.value().read(all.data(), file.value().bytes(), 0); !done) return done.error();
      return all;
    });
    if (text) return std::move(text).value();
    const Error& error = text.error();
    if (error.os_error != ENOENT) throw Fatal(passes(error.os_error) ? ExitCode::kDrained : error.code, error.message);
    return std::string();
  };
  const auto fields_of = [](const std::string& text) {
    const auto fields = flat_config(text);
    return fields ? fields.value() : std::vector<FlatField>{};
  };
  const FlatField asked{"precision.gemm", std::string(enum_name(GemmFormat::kAuto))};
  const std::string resolved = read("resolved.yaml");
  const std::vector<FlatField> written = fields_of(read("config.yaml")), before = fields_of(resolved);
  if (std::find(written.begin(), written.end(), asked) == written.end()) return std::nullopt;
  const FlatField on_gpus{"run.device", std::string(enum_name(DeviceChoice::kCuda))};  // elsewhere nothing was timed
  if (std::find(before.begin(), before.end(), on_gpus) == before.end()) return std::nullopt;
  for (const FlatChange& change : flat_changes(before, value_or_throw(flat_config(to_yaml(config))))) {
    const bool matters = change.name.starts_with("precision.") || change.name.starts_with("model.") ||
                         change.name == "parallel.tp" || change.name == "data.micro_batch";
    if (matters && change.name != asked.name) return std::nullopt;
  }
  std::string gpu_kinds;
  if (resolved.starts_with(kGpuKinds))
    gpu_kinds = resolved.substr(kGpuKinds.size(), resolved.find('\n') - kGpuKinds.size());
  for (const GemmFormat format : {GemmFormat::kCompute, GemmFormat::kFp8})
    if (std::find(before.begin(), before.end(), FlatField{asked.name, std::string(enum_name(format))}) != before.end())
      return KeptGemm{format, gpu_kinds};
  return std::nullopt;
}

}  // namespace tri
