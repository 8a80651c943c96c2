// Writes the logits of a checkpoint's model at every position of a text, for comparison with other implementations.
//   logits CHECKPOINT IDS.i32 OUT.f32
// IDS.i32 holds n int32 token ids, OUT.f32 gets float32 (n, vocab).
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "kernels/cpu/device.h"
#include "lib/infer/loaded_model.h"
#include "tests/golden/tool.h"

namespace tri {
namespace {

Result<void> write_logits(const std::string& path, const std::string& ids_path, const std::string& out_path, Job& job) {
  const auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  auto manifest = read_manifest(folder.value());
  if (!manifest) return manifest.error();
  auto config = checkpoint_config(folder.value(), manifest.value());
  if (!config) return config.error();
  Config alone = forward_config(config.value(), 1);
  alone.data.micro_batch = alone.data.global_batch = 1;
  const auto resolved = resolve_config(alone, 1);
  if (!resolved) return resolved.error();
  auto device = make_cpu_device();
  const OpenedCheckpoint checkpoint{folder.value(), std::move(manifest).value()};
  auto model = LoadedModel::load(checkpoint, resolved.value(), make_mesh(0, {}), job, *device);
  if (!model) return model.error();

  const auto file = MappedFile::open(ids_path);
  if (!file) return file.error();
  std::vector<int32_t> ids(file.value().bytes().size() / sizeof(int32_t));
  std::memcpy(ids.data(), file.value().bytes().data(), ids.size() * sizeof(int32_t));
  std::string out;
  for (size_t n = 1; n <= ids.size(); ++n) {
    const std::vector<float> logits = model.value()->evaluator().next_token_logits(std::span(ids).first(n));
    out.append(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
  }
  return write_file(out_path, out);
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: logits CHECKPOINT IDS.i32 OUT.f32\n");
    return 2;
  }
  return tri::run_job(&argc, &argv, [&](tri::Job& job) {
    return tri::tool_status([&] { return tri::write_logits(argv[1], argv[2], argv[3], job); });
  });
}
