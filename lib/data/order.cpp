#include "lib/data/order.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "io/base/format.h"
#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/base/random.h"

namespace tri {
namespace {

constexpr uint64_t kValidationKey = 0x7472692D76616C69;  // the order is equal for every seed, so that evaluations are
                                                         // comparable

// Returns the stages of `fields`; without any, one that has all sources and no end.
std::vector<OrderedStage> stages_of(const OrderFields& fields) {
  if (!fields.stages.empty()) return fields.stages;
  OrderedStage all;
  for (size_t i = 0; i < fields.sources.size(); ++i) {
    all.sources.push_back(static_cast<int>(i));
    all.weights.push_back(fields.sources[i].weight);
  }
  return {all};
}

// Returns whether the stages can be those of an order with `num_sources` sources.
bool are_valid(const std::vector<OrderedStage>& stages, size_t num_sources) {
  int64_t before = 0;
  for (const OrderedStage& stage : stages) {
    const bool last = &stage == &stages.back();
    if (stage.sources.empty() || stage.sources.size() != stage.weights.size()) return false;
    if (last ? stage.end != 0 : stage.end < before) return false;
    std::vector<bool> seen(num_sources, false);
    for (const int source : stage.sources) {
      if (source < 0 || static_cast<size_t>(source) >= num_sources || seen[static_cast<size_t>(source)]) return false;
      seen[static_cast<size_t>(source)] = true;
    }
    for (const double weight : stage.weights)
      if (!(weight > 0)) return false;
    before = stage.end;
  }
  return true;
}

std::string describe(const std::vector<OrderedStage>& stages) {
  std::string text;
  for (const OrderedStage& stage : stages)
    text += fmt::format("{}{} until {}", text.empty() ? "" : ", ",
                        counted(static_cast<int64_t>(stage.sources.size()), "source"),
                        stage.end == 0 ? "the end" : fmt::format("sample {}", stage.end));
  return text.empty() ? "none" : text;
}

// Returns the first differing training sample among `count` samples starting at `from`.
std::optional<int64_t> first_difference(const SampleOrder& a, const SampleOrder& b, int64_t from, int64_t count) {
  if (a.seq_len() != b.seq_len() || a.packing() != b.packing()) return from;
  for (int64_t i = from; i < from + count; ++i) {
    const SampleOrder::Place x = a.at(Split::kTrain, i), y = b.at(Split::kTrain, i);
    if (x.sample != y.sample || a.contents(x) != b.contents(y)) return i;
  }
  return std::nullopt;
}

std::string describe(const OrderedSource& source) {
  return fmt::format("{} tokens, fingerprint {}", source.tokens, hex64(source.fingerprint));
}

void add_differences(const OrderFields& before, const OrderFields& now, OrderChange& change) {
  const auto add = [&](const std::string& field, const std::string& line) {
    change.text += "\n  " + line;
    if (change.fields.empty() || change.fields.back() != field) change.fields.push_back(field);
  };
  const auto compare = [&](const std::string& field, const auto& was, const auto& is) {
    if (was != is) add(field, fmt::format("{}: {}, now {}", field, was, is));
  };
  compare("model.seq_len", before.seq_len, now.seq_len);
  compare("data.seed", before.seed, now.seed);
  compare("data.validation_fraction", before.validation_fraction, now.validation_fraction);
  compare("data.packing", enum_name(before.packing), enum_name(now.packing));
  const bool staged = !before.stages.empty() || !now.stages.empty();
  const std::string sources = staged ? "data.stages" : "data.sources";
  if (before.stages != now.stages)
    add(sources, fmt::format("data.stages: {}, now {}{}", describe(before.stages), describe(now.stages),
                             describe(before.stages) == describe(now.stages) ? " with other sources or weights" : ""));
  if (before.sources.size() != now.sources.size())
    add(sources, fmt::format("{}: {} listed, now {}", sources, before.sources.size(), now.sources.size()));
  for (size_t i = 0; i < std::min(before.sources.size(), now.sources.size()); ++i) {
    const OrderedSource &was = before.sources[i], &is = now.sources[i];
    // With stages their sources are listed together, each once.
    const std::string name = staged ? fmt::format("{}: file {}", sources, i + 1) : fmt::format("{}[{}]", sources, i);
    if (was.weight != is.weight) add(sources, fmt::format("{}.weight: {}, now {}", name, was.weight, is.weight));
    if (was.fingerprint != is.fingerprint || was.shuffle_key != is.shuffle_key)
      add(sources, fmt::format("{}: {} with {}, now {} with {}", name, was.path, describe(was), is.path, describe(is)));
  }
}

}  // namespace

std::string to_text(const OrderFields& fields) {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (const OrderedSource& source : fields.sources)
    sources.push_back({{"path", source.path},
                       {"weight", source.weight},
                       {"tokens", source.tokens},
                       {"fingerprint", hex64(source.fingerprint)},
                       {"shuffle_key", hex64(source.shuffle_key)}});
  nlohmann::ordered_json object = {{"seed", fields.seed},
                                   {"validation_fraction", fields.validation_fraction},
                                   {"seq_len", fields.seq_len},
                                   {"sources", std::move(sources)}};
  // Earlier versions do not know these; a run without them can still be read by one.
  for (const OrderedStage& stage : fields.stages)
    object["stages"].push_back({{"end", stage.end}, {"sources", stage.sources}, {"weights", stage.weights}});
  if (fields.packing != Packing::kStream) object["packing"] = enum_name(fields.packing);
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // paths may contain any bytes
}

Result<OrderFields> order_fields_from_text(std::string_view text) {
  const Error malformed = file_error("not a description of an order of samples: {}", text);
  try {
    const auto object = parse_json<nlohmann::json>(text);
    OrderFields fields{.seed = object.at("seed"),
                       .validation_fraction = object.at("validation_fraction"),
                       .seq_len = object.at("seq_len"),
                       .sources = {},
                       .stages = {}};
    for (const auto& source : object.at("sources")) {
      const auto fingerprint = parse_hex64(source.at("fingerprint").get<std::string>());
      const auto shuffle_key = parse_hex64(source.at("shuffle_key").get<std::string>());
      const double weight = source.at("weight");
      const int64_t tokens = source.at("tokens");
      if (!fingerprint || !shuffle_key || !(weight > 0) || num_samples(tokens, std::max(fields.seq_len, 1)) < 1)
        return malformed;
      fields.sources.push_back({.path = source.at("path"),
                                .weight = weight,
                                .fingerprint = *fingerprint,
                                .shuffle_key = *shuffle_key,
                                .tokens = tokens});
    }
    if (object.contains("stages"))
      for (const auto& stage : object.at("stages"))
        fields.stages.push_back(
            {.end = stage.at("end"), .sources = stage.at("sources"), .weights = stage.at("weights")});
    if (object.contains("packing")) {
      const auto packing = enum_from_name<Packing>(object.at("packing").get<std::string>());
      if (!packing) return malformed;
      fields.packing = *packing;
    }
    if (fields.sources.empty() || fields.seq_len < 1 || !are_valid(fields.stages, fields.sources.size()))
      return malformed;
    return fields;
  } catch (const nlohmann::json::exception&) {
    return malformed;
  }
}

SampleOrder::SampleOrder(const OrderFields& fields) : seq_len_(fields.seq_len), packing_(fields.packing) {
  for (const OrderedSource& source : fields.sources) {
    const int64_t samples = tri::num_samples(source.tokens, seq_len_);
    TRI_REQUIRE(samples >= 1, "{} tokens for samples of {}", source.tokens, seq_len_);
    auto validation = static_cast<int64_t>(std::llround(static_cast<double>(samples) * fields.validation_fraction));
    if (fields.validation_fraction > 0 && samples >= 2) validation = std::clamp<int64_t>(validation, 1, samples - 1);
    if (samples < 2) validation = 0;
    const uint64_t key = random_u64(derive_key(fields.seed, "source"), source.shuffle_key);
    sources_.push_back({samples - validation, validation, key, source.fingerprint});
  }
  const std::vector<OrderedStage> stages = stages_of(fields);
  TRI_REQUIRE(are_valid(stages, sources_.size()), "the stages {}", describe(stages));
  for (const OrderedStage& stage : stages) add_stage(fields, stage);
}

void SampleOrder::add_stage(const OrderFields& fields, const OrderedStage& stage) {
  const size_t number = stages_.size();
  const int64_t begin = number == 0 ? 0 : stages_.back().end;
  // The first stage is mixed like a run without stages.
  const uint64_t seed = number == 0 ? fields.seed : random_u64(derive_key(fields.seed, "stage"), number);
  Stage made{.begin = begin,
             .end = stage.end == 0 ? std::numeric_limits<int64_t>::max() : stage.end,
             .mixer = Mixer(seed, stage.weights),
             .sources = stage.sources,
             .offsets = {},
             .tail = {}};
  for (const int source : stage.sources) made.offsets.push_back(consumed(source, begin));
  if (stage.end != 0) {
    const int64_t blocks = (made.end - begin) / Mixer::kBlockSamples;
    std::vector<uint64_t> next;  // [mixer's source]
    for (size_t s = 0; s < stage.sources.size(); ++s)
      next.push_back(made.mixer.count(static_cast<int>(s), static_cast<uint64_t>(blocks)));
    for (int64_t i = blocks * Mixer::kBlockSamples; i < made.end - begin; ++i) {
      const int source = made.mixer.at(static_cast<uint64_t>(i)).source;
      made.tail.push_back({source, next[static_cast<size_t>(source)]++});
    }
  }
  stages_.push_back(std::move(made));
}

Mixer::Place SampleOrder::Stage::at(int64_t index) const {
  return index < tail_begin() ? mixer.at(static_cast<uint64_t>(index - begin))
                              : tail[static_cast<size_t>(index - tail_begin())];
}

int64_t SampleOrder::consumed(int source, int64_t index) const {
  int64_t count = 0;
  for (const Stage& stage : stages_) {
    if (stage.begin >= index) break;
    const auto found = std::ranges::find(stage.sources, source);
    if (found == stage.sources.end()) continue;
    const auto s = static_cast<int>(found - stage.sources.begin());
    const int64_t end = std::min(index, stage.end), blocks = (end - stage.begin) / Mixer::kBlockSamples;
    count += static_cast<int64_t>(stage.mixer.count(s, static_cast<uint64_t>(blocks)));
    for (int64_t i = stage.begin + blocks * Mixer::kBlockSamples; i < end; ++i) count += stage.at(i).source == s;
  }
  return count;
}

SampleOrder::Place SampleOrder::at(Split split, int64_t index) const {
  if (split == Split::kTrain) {
    const auto stage = std::ranges::upper_bound(stages_, index, {}, &Stage::end);
    const Mixer::Place place = stage->at(index);
    const int number = stage->sources[static_cast<size_t>(place.source)];
    const Source& source = sources_[static_cast<size_t>(number)];
    const uint64_t in_stream = static_cast<uint64_t>(stage->offsets[static_cast<size_t>(place.source)]) + place.index;
    return {number, static_cast<int64_t>(shuffled(source.key, static_cast<uint64_t>(source.train_samples), in_stream))};
  }
  // Uses a fixed shuffle, so that a short evaluation sees every source in proportion. A single source that is read
  // whole keeps the order of its first training epoch.
  const auto count = static_cast<uint64_t>(num_samples(split));
  TRI_REQUIRE(count > 0, "no validation samples");
  const uint64_t key = split == Split::kWhole && sources_.size() == 1 ? sources_.front().key : kValidationKey;
  auto sample = static_cast<int64_t>(shuffled(key, count, static_cast<uint64_t>(index) % count));
  int source = 0;
  while (sample >= num_samples(split, source)) sample -= num_samples(split, source++);
  return {source, sample + (split == Split::kWhole ? 0 : sources_[static_cast<size_t>(source)].train_samples)};
}

int64_t SampleOrder::num_samples(Split split, int source) const {
  const Source& of = sources_[static_cast<size_t>(source)];
  return (split != Split::kValidation ? of.train_samples : 0) + (split != Split::kTrain ? of.validation_samples : 0);
}

int64_t SampleOrder::num_samples(Split split) const {
  int64_t total = 0;
  for (size_t source = 0; source < sources_.size(); ++source) total += num_samples(split, static_cast<int>(source));
  return total;
}

std::optional<OrderChange> order_change(const OrderFields& before, const OrderFields& now, int64_t consumed) {
  constexpr int64_t kLookedAt = int64_t{1} << 20;
  const SampleOrder was(before), is(now);
  if (was == is) return std::nullopt;
  const auto first = first_difference(was, is, consumed, kLookedAt);
  OrderChange change;
  change.text =
      first ? fmt::format("{} samples were consumed; their order differs from sample {} on", consumed, *first)
            : fmt::format("the sample order differs, but not in the {} samples that follow the {} consumed ones",
                          kLookedAt, consumed);
  add_differences(before, now, change);
  return change;
}

}  // namespace tri
