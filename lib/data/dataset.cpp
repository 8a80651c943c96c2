#include "lib/data/dataset.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>

#include "lib/data/packing.h"

namespace tri {

Result<Dataset> Dataset::open(const std::vector<SourceSpec>& specs, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab, const DatasetOptions& options) {
  TRI_REQUIRE(!specs.empty() && seq_len >= 1, "{} sources, {} tokens a sample", specs.size(), seq_len);
  const int files_of_source = options.packing == Packing::kBestFit ? 2 : 1;
  allow_open_files(files_of_source * static_cast<int64_t>(specs.size()));
  OrderFields fields{.seed = seed,
                     .validation_fraction = validation_fraction,
                     .seq_len = seq_len,
                     .sources = {},
                     .stages = options.stages,
                     .packing = options.packing};
  std::vector<TokenFile> files;
  std::vector<DocumentIndex> documents;

  constexpr size_t kMostShown = 100;
  std::vector<std::string> problems;  // the first ones
  size_t num_problems = 0;
  const auto note = [&](const std::string& text) {
    if (++num_problems <= kMostShown) problems.push_back(text);
  };
  for (const SourceSpec& spec : specs) {
    auto opened = TokenFile::open(spec.path);
    if (!opened && (opened.error().os_error == EMFILE || opened.error().os_error == ENFILE)) {
      note(fmt::format(
          "{}: {}; {} of {} sources are open, and each needs an open file: raise the limit (ulimit -Hn), or "
          "prepare several sources into one",
          options.field, opened.error().message, files.size(), specs.size()));
      break;  // no further source can be opened
    }
    if (!opened) {
      note(options.field + ": " + opened.error().message);
      continue;
    }
    TokenFile file = std::move(opened).value();
    if (tri::num_samples(file.num_tokens(), seq_len) < 1) {
      note(
          fmt::format("{}: {}: {} tokens are fewer than one sample of model.seq_len + 1 = {}; add text or "
                      "shorten model.seq_len",
                      options.field, spec.path, file.num_tokens(), seq_len + 1));
      continue;
    }
    const int64_t checked = std::min<int64_t>(file.num_tokens(), int64_t{64} * (seq_len + 1));
    for (const int64_t first : {int64_t{0}, file.num_tokens() - checked})
      if (auto range = file.check_range(first, first + checked, vocab); !range) {
        note(fmt::format("{}: {}; set model.vocab and data.tokenizer to those it was prepared with", options.field,
                         range.error().message));
        break;
      }
    const auto fingerprint = file.fingerprint(), shuffle_key = file.shuffle_key();
    for (const auto& read : {fingerprint, shuffle_key})
      if (!read) note(options.field + ": " + read.error().message);
    if (!fingerprint || !shuffle_key) continue;
    fields.sources.push_back({.path = spec.path,
                              .weight = spec.weight,
                              .fingerprint = fingerprint.value(),
                              .shuffle_key = shuffle_key.value(),
                              .tokens = file.num_tokens()});
    files.push_back(std::move(file));
    if (options.packing != Packing::kBestFit) continue;
    if (auto index = DocumentIndex::open(spec.path))
      documents.push_back(std::move(index).value());
    else
      note(options.field + ": " + index.error().message);
  }
  if (num_problems > kMostShown)
    problems.push_back(fmt::format("{} errors, of which the first {} are shown", num_problems, kMostShown));
  if (!problems.empty()) return Error{fmt::format("{}", fmt::join(problems, "\n")), ExitCode::kFile};
  return Dataset(fields, std::move(files), std::move(documents), vocab);
}

// Reads the tokens of a sample of packing.h, then the one that follows them in the file: the last target.
void Dataset::read_packed(const SampleOrder::Place& place, std::span<int32_t> out) const {
  const auto source = static_cast<size_t>(place.source);
  const TokenFile& file = (*files_)[source];
  const int64_t length = seq_len(), first = place.sample / kWindowSamples * kWindowSamples,
                end = std::min(first + kWindowSamples, tri::num_samples(fields_.sources[source].tokens, seq_len()));
  const auto samples = pack_documents((*documents_)[source].bounds(first * length, end * length), length);
  const std::vector<Extent>& extents = samples[static_cast<size_t>(place.sample - first)];
  for (const Extent& extent : extents) {
    const bool last = &extent == &extents.back();
    const auto count = static_cast<size_t>(extent.count + last);
    file.read(extent.first, out.first(count));
    out = out.subspan(count);
  }
}

int64_t Dataset::sample(Split split, int64_t index, std::span<int32_t> out) const {
  TRI_REQUIRE(static_cast<int>(out.size()) == seq_len() + 1, "{} tokens for a sample of {}", out.size(), seq_len() + 1);
  const SampleOrder::Place place = order_.at(split, index);
  const TokenFile& file = (*files_)[static_cast<size_t>(place.source)];
  if (order_.packing() == Packing::kBestFit)
    read_packed(place, out);
  else
    file.read(place.sample * seq_len(), out);
  for (const int32_t token : out)
    if (token < 0 || token >= vocab_)
      throw Fatal(ExitCode::kFile, fmt::format("{}.bin: sample {} holds token {}, outside model.vocab {}",
                                               file.prefix(), place.sample, token, vocab_));
  return static_cast<int64_t>(out.size()) * token_bytes(file.type());
}

}  // namespace tri
