// Publishes a checkpoint without tensors, for simulated trainers: make_checkpoint FOLDER STEP.
#include <cstdio>
#include <string>

#include "io/checkpoint/folder.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string dir = argv[1], attempt = tri::new_attempt();
  const tri::Manifest manifest{.attempt = attempt, .step = std::stoll(argv[2])};
  const auto folder = tri::begin_attempt(dir, manifest.step, attempt);
  const auto written = folder ? tri::write_manifest(folder.value(), manifest) : folder.error();
  const auto published = written ? tri::publish(dir, manifest.step, attempt) : written;
  if (!published) std::fprintf(stderr, "%s\n", published.error().message.c_str());
  return published ? 0 : 1;
}
