// Writes the logits of a checkpoint's model at every position of a text, for comparison with other implementations.
//   logits CHECKPOINT IDS.i32 OUT.f32 [STARTS.i32]
// IDS.i32 holds n int32 token ids, OUT.f32 gets float32 (n, vocab). With STARTS.i32, the text is a sample of documents,
// of model.seq_len tokens; STARTS.i32 holds the position at which the document of each token starts, and OUT.f32 gets
// the log-probabilities of every 16th token at each position, (n, ceil(vocab / 16)): logits less a constant.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "kernels/cpu/device.h"
#include "kernels/no_target.h"
#include "lib/infer/loaded_model.h"
#include "tests/golden/tool.h"

namespace tri {
namespace {

Result<std::vector<int32_t>> read_integers(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  std::vector<int32_t> values(file.value().bytes().size() / sizeof(int32_t));
  std::memcpy(values.data(), file.value().bytes().data(), values.size() * sizeof(int32_t));
  return values;
}

Result<void> write_logits(const std::string& path, const std::string& ids_path, const std::string& out_path,
                          const std::string& starts_path, Job& job) {
  const auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  auto manifest = read_manifest(folder.value());
  if (!manifest) return manifest.error();
  auto config = checkpoint_config(folder.value(), manifest.value());
  if (!config) return config.error();
  Config alone = forward_config(config.value(), 1);
  alone.data.micro_batch = alone.data.global_batch = 1;
  alone.data.document_mask = !starts_path.empty();
  const auto resolved = resolve_config(alone, 1);
  if (!resolved) return resolved.error();
  auto device = make_cpu_device();
  const OpenedCheckpoint checkpoint{folder.value(), std::move(manifest).value()};
  auto model = LoadedModel::load(checkpoint, resolved.value(), make_mesh(0, {}), job, *device);
  if (!model) return model.error();

  const auto read = read_integers(ids_path);
  if (!read) return read.error();
  const std::vector<int32_t>& ids = read.value();
  std::string out;
  if (!starts_path.empty()) {
    const auto starts = read_integers(starts_path);
    if (!starts) return starts.error();
    for (size_t t = 0; t < ids.size(); ++t)
      for (int32_t token = 0; token < resolved.value().model.vocab; token += 16) {
        std::vector<int32_t> targets(ids.size(), kNoTarget);
        targets[t] = token;
        const double mean = model.value()->evaluator().evaluate(ids, targets, starts.value());
        const auto value = static_cast<float>(-mean * static_cast<double>(ids.size()));
        out.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    return write_file(out_path, out);
  }
  for (size_t n = 1; n <= ids.size(); ++n) {
    const std::vector<float> logits = model.value()->evaluator().next_token_logits(std::span(ids).first(n));
    out.append(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
  }
  return write_file(out_path, out);
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    fmt::print(stderr, "usage: logits CHECKPOINT IDS.i32 OUT.f32 [STARTS.i32]\n");
    return 2;
  }
  return tri::run_job(&argc, &argv, [&](tri::Job& job) {
    return tri::tool_status(
        [&] { return tri::write_logits(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "", job); });
  });
}
