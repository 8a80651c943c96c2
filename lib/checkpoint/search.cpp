#include "lib/checkpoint/search.h"

#include "io/base/log.h"
#include "lib/checkpoint/weights.h"

#include <bit>
#include <charconv>
#include <sstream>

namespace tri {
namespace {

// Rank 0's choice of a checkpoint, and what other ranks need to know from its manifest.
struct LoadFrom {
  std::optional<std::string> folder;  // none: no candidate is left
  bool any = false;                   // checkpoints exist, readable or not
  int64_t step = 0;
  std::optional<int64_t> samples;
  std::vector<float> fp8_history, recent_steps, router_bias;
  bool weights_alone = false, has_average = false;
};
template <class Archive>
void fields(Archive& archive, LoadFrom& from) {
  archive(from.folder, from.any, from.step, from.samples, from.fp8_history, from.recent_steps, from.weights_alone,
          from.has_average, from.router_bias);
}

// Rank 0: returns the first readable candidate from `next` on, with its manifest, and moves `next` past it. Skips
// damaged ones. Fails if storage does not return one of them at present, or if another version wrote it.
Result<LoadFrom> next_to_load(const std::vector<CheckpointCandidate>& candidates, size_t& next,
                              std::optional<Manifest>& manifest) {
  LoadFrom from{.any = !candidates.empty()};
  while (next < candidates.size() && !manifest) {
    const CheckpointCandidate& candidate = candidates[next++];
    auto opened = open_candidate(candidate);
    if (!opened && is_transient(opened.error().os_error)) return opened.error();
    if (!opened) {
      if (auto skipped = skip_candidate(candidate, opened.error()); !skipped) return skipped.error();
      continue;
    }
    manifest = std::move(opened).value();
    const auto samples = manifest->info.numbers.find("samples");
    from.folder = candidate.path;
    from.step = manifest->step;
    if (samples != manifest->info.numbers.end()) from.samples = samples->second;
    auto history = fp8_history_of(manifest->info);
    if (!history) return file_error("{}: {}", candidate.path, history.error().message);
    from.fp8_history = std::move(history).value();
    if (const auto recent = manifest->info.lists.find(kRecentSteps); recent != manifest->info.lists.end())
      from.recent_steps = recent->second;
    from.router_bias = router_bias_of(manifest->info);
    from.weights_alone = holds_weights_alone(*manifest);
    from.has_average = holds_average(*manifest);
  }
  return from;
}

}  // namespace

Result<std::vector<float>> fp8_history_of(const CheckpointInfo& info) {
  if (const auto list = info.lists.find(kFp8History); list != info.lists.end()) return list->second;
  const auto text = info.texts.find(kFp8History);
  std::vector<float> history;
  if (text == info.texts.end()) return history;
  std::istringstream words(text->second.substr(0, text->second.find(" guard ")));
  for (std::string word; words >> word;) {
    uint32_t bits = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), bits, 16);
    if (problem != std::errc() || end != word.data() + word.size())
      return file_error("the FP8 history contains '{}', which is not a hexadecimal number", word);
    history.push_back(std::bit_cast<float>(bits));
  }
  return history;
}

std::vector<float> router_bias_of(const CheckpointInfo& info) {
  const auto list = info.lists.find(kRouterBias);
  return list == info.lists.end() ? std::vector<float>{} : list->second;
}

Error load_error(const Error& error) {
  if (!is_transient(error.os_error, Missing::kTransient)) return error;
  return {fmt::format(
              "{}\nNothing was loaded and nothing is lost: re-run the job when storage is available on all nodes, or "
              "move the unreadable checkpoints away to start from an older one",
              error.message),
          ExitCode::kDrained, error.os_error};
}

CheckpointSearch::CheckpointSearch(std::string dir, std::string attempt, Job& job, MayLoad may)
    : dir_(std::move(dir)), attempt_(std::move(attempt)), job_(job), may_load_(std::move(may)) {}

Result<void> CheckpointSearch::list() {
  Result<void> listing;
  if (job_.world_rank() == 0) {
    const auto removed = remove_stale_attempts(dir_, attempt_);
    if (!removed) log_warn("{}", removed.error().message);
    auto listed = checkpoint_candidates(dir_);
    if (auto usable = check_latest(dir_); !usable)
      listing = usable;
    else if (listed)
      candidates_ = std::move(listed).value();
    else
      listing = listed.error();
  }
  // A folder that can't be listed may contain checkpoints, which a run from step 0 would replace.
  if (auto agreed = agree(job_, listing); !agreed) return load_error(agreed.error());
  return {};
}

Result<void> CheckpointSearch::next() {
  if (!std::exchange(listed_, true))
    if (auto listed = list(); !listed) return listed;
  manifest_.reset();
  found_.reset();
  const auto chosen = job_.broadcast(job_.world_rank() == 0 ? next_to_load(candidates_, next_, manifest_) : LoadFrom{});
  if (!chosen) return load_error(chosen.error());
  const LoadFrom& from = chosen.value();
  if (!from.folder && from.any)  // failing storage must not make the run start over
    return file_error("{}: no checkpoint could be read; to start over, move the folder away", dir_);
  if (!from.folder) return {};
  if (!from.samples)
    return file_error("{}: the checkpoint does not contain the number of consumed samples", *from.folder);
  const Result<void> may = manifest_ && may_load_ ? may_load_(*from.folder, *manifest_) : Result<void>{};
  if (auto agreed = agree(job_, may); !agreed) return agreed;
  found_ = {.folder = *from.folder,
            .progress = {from.step, *from.samples, from.fp8_history, from.recent_steps, from.router_bias},
            .weights_alone = from.weights_alone,
            .has_average = from.has_average};
  return {};
}

}  // namespace tri
