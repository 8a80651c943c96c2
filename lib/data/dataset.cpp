#include "lib/data/dataset.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>

#include "io/base/random.h"
#include "lib/data/target_mask.h"

namespace tri {

Result<Dataset> Dataset::open(const std::vector<SourceSpec>& specs, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab, const DatasetOptions& options) {
  TRI_REQUIRE(!specs.empty() && seq_len >= 1, "{} sources, {} tokens a sample", specs.size(), seq_len);
  const bool needs_index = options.packing == Packing::kBestFit || options.documents;
  const int files_of_source = needs_index ? 3 : 2;  // tokens, mask, index
  allow_open_files(files_of_source * static_cast<int64_t>(specs.size()));
  OrderFields fields{.seed = seed,
                     .validation_fraction = validation_fraction,
                     .seq_len = seq_len,
                     .sources = {},
                     .stages = options.stages,
                     .packing = options.packing};
  std::vector<SourceFiles> files;
  const auto packed = std::make_shared<PackedWindowCache>();

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
    auto mask = LossMask::open(file);
    if (!mask) note(options.field + ": " + mask.error().message);
    if (!fingerprint || !shuffle_key || !mask) continue;
    uint64_t contents = fingerprint.value();
    std::optional<int64_t> trained;
    if (mask.value()) {
      const auto of_mask = mask.value()->fingerprint();
      if (!of_mask) {
        note(options.field + ": " + of_mask.error().message);
        continue;
      }
      contents = random_u64(contents, of_mask.value());
      trained = mask.value()->num_trained();
    }
    if (options.documents && file.num_documents() < 2)
      note(
          fmt::format("{}: {}: the file has {} document, so samples have no ends of documents; prepare it with a "
                      "document per line (--format lines or jsonl), or set data.document_mask: false and "
                      "data.eod_loss: true",
                      options.field, spec.path, file.num_documents()));
    fields.sources.push_back({.path = spec.path,
                              .weight = spec.weight,
                              .fingerprint = contents,
                              .shuffle_key = shuffle_key.value(),
                              .tokens = file.num_tokens(),
                              .trained = trained});
    files.push_back({std::move(file), std::move(mask).value(), nullptr, nullptr});
    if (!needs_index) continue;
    auto documents = DocumentIndex::open(spec.path);
    if (!documents) {
      note(options.field + ": " + documents.error().message);
      continue;
    }
    SourceFiles& source = files.back();
    source.documents = std::make_shared<const DocumentIndex>(std::move(documents).value());
    if (options.packing == Packing::kBestFit)
      source.windows = std::make_unique<PackedWindows>(source.documents, source.tokens.num_tokens(), seq_len, packed);
  }
  if (num_problems > kMostShown)
    problems.push_back(fmt::format("{} errors, of which the first {} are shown", num_problems, kMostShown));
  if (!problems.empty()) return Error{fmt::format("{}", fmt::join(problems, "\n")), ExitCode::kFile};
  return Dataset(fields, std::move(files), vocab, options.eod_loss);
}

std::vector<Extent> Dataset::extents(const SampleOrder::Place& place) const {
  const int64_t length = seq_len();
  PackedWindows* const windows = (*files_)[static_cast<size_t>(place.source)].windows.get();
  if (windows == nullptr) return {{place.sample * length, length + 1}};
  std::vector<Extent> extents = windows->sample(place.sample);
  ++extents.back().count;  // the last target
  return extents;
}

std::vector<int32_t> Dataset::starts_of(const SampleOrder::Place& place, const std::vector<Extent>& extents) const {
  const std::shared_ptr<const DocumentIndex>& index = (*files_)[static_cast<size_t>(place.source)].documents;
  TRI_REQUIRE(index != nullptr, "a dataset without documents");
  std::vector<int32_t> starts;
  int64_t end = -1;  // of the extent before
  for (const Extent& extent : extents) {
    // An extent that continues the one before may continue its document.
    const std::vector<int64_t> bounds =
        index->bounds(extent.first - (extent.first == end ? 1 : 0), extent.first + extent.count);
    end = bounds.back();
    for (size_t d = 0; d + 1 < bounds.size(); ++d) {
      const bool continues = bounds[d] < extent.first;
      const int32_t start = continues ? starts.back() : static_cast<int32_t>(starts.size());
      starts.insert(starts.end(), static_cast<size_t>(bounds[d + 1] - std::max(bounds[d], extent.first)), start);
    }
  }
  return starts;
}

int64_t Dataset::sample(Split split, int64_t index, std::span<int32_t> out, std::span<int32_t> starts) const {
  TRI_REQUIRE(static_cast<int>(out.size()) == seq_len() + 1, "{} tokens for a sample of {}", out.size(), seq_len() + 1);
  const SampleOrder::Place place = order_.at(split, index);
  const SourceFiles& source = (*files_)[static_cast<size_t>(place.source)];
  const TokenFile& file = source.tokens;
  const std::vector<Extent> extents = this->extents(place);
  // Calls read(first token, part of `list`) for each extent.
  const auto read_extents = [&](auto list, auto read) {
    for (const Extent& extent : extents) {
      read(extent.first, list.first(static_cast<size_t>(extent.count)));
      list = list.subspan(static_cast<size_t>(extent.count));
    }
  };
  read_extents(out, [&](int64_t first, std::span<int32_t> to) { file.read(first, to); });
  for (const int32_t token : out)
    if (token < 0 || token >= vocab_)
      throw Fatal(ExitCode::kFile, fmt::format("{}.bin: sample {} holds token {}, outside model.vocab {}",
                                               file.prefix(), place.sample, token, vocab_));
  int64_t bytes = static_cast<int64_t>(out.size()) * token_bytes(file.type());
  if (source.mask) {
    std::vector<uint8_t> trained(out.size());
    read_extents(std::span(trained), [&](int64_t first, std::span<uint8_t> to) { source.mask->read(first, to); });
    for (size_t t = 1; t < out.size(); ++t)
      if (trained[t] == 0) out[t] = masked(out[t]);
    bytes += static_cast<int64_t>(trained.size());
  }
  if (!starts.empty() || !eod_loss_) {
    TRI_REQUIRE(starts.empty() || static_cast<int>(starts.size()) == seq_len(), "{} starts of documents",
                starts.size());
    const std::vector<int32_t> all = starts_of(place, extents);
    std::copy_n(all.begin(), starts.size(), starts.begin());
    for (size_t t = 1; t < out.size() && !eod_loss_; ++t)
      if (all[t] == static_cast<int32_t>(t)) out[t] = masked(out[t]);
  }
  return bytes;
}

std::vector<int32_t> Dataset::document_starts(Split split, int64_t index) const {
  const SampleOrder::Place place = order_.at(split, index);
  std::vector<int32_t> starts = starts_of(place, extents(place));
  starts.pop_back();
  return starts;
}

}  // namespace tri
