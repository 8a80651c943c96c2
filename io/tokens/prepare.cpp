#include "io/tokens/prepare.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/tokens/prepare_blocks.h"
#include "io/tokens/token_file.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string state_path(const PrepareOptions& options) { return options.output + ".json.part"; }

std::vector<std::string> prefixes_of(const PrepareOptions& options) {
  if (options.splits.empty()) return {options.output};
  std::vector<std::string> prefixes;
  for (const DocumentSplit& split : options.splits) prefixes.push_back(options.output + "_" + split.name);
  return prefixes;
}

Result<void> check_output(const PrepareOptions& options) {
  // A folder's name would make files such as DIR/.bin, which are hidden.
  if (const std::string name = fs::path(options.output).filename(); name.empty() || name == "." || name == "..")
    return usage_error("--output {}: names a folder; give the files a name in it, such as {}", options.output,
                       (fs::path(options.output) / "text").string());
  if (options.existing == Existing::kOverwrite) return {};
  std::error_code ignored;  // a folder that can't be looked into can't be written into
  for (const std::string& prefix : prefixes_of(options))
    for (const char* extension : {".bin", ".idx", ".json"})
      if (const std::string path = prefix + extension; fs::exists(path, ignored))
        return usage_error("{}: is there already; overwrite it with --force, or give another --output", path);
  return {};
}

// The token file, and the sidecar that belongs to it. At no moment does a sidecar stand beside tokens of another file.
Result<void> put_in_place(TokenFileWriter& tokens, const std::string& path, const std::string& sidecar) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  file.value().write(sidecar.data(), sidecar.size());
  if (auto written = file.value().flush(); !written) return written;
  std::error_code problem;
  fs::remove(path, problem);  // of the output that is overwritten
  if (problem) return system_error(problem.value(), "{}: removing it", path);
  if (auto done = tokens.finish(); !done) return done;
  return file.value().commit();
}

// "jsonl", or "jsonl, text" where inputs differ.
std::string formats_of(const std::vector<TextInput>& inputs) {
  std::set<std::string_view> names;
  for (const TextInput& input : inputs) names.insert(enum_name(input.format));
  return fmt::format("{}", fmt::join(names, ", "));
}

// A path as the state holds it: JSON is UTF-8, and names of files are any bytes.
std::string in_json(const std::string& path) {
  if (utf8_prefix(path) == path.size()) return path;
  std::string hex = "bytes ";
  for (const char c : path) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// A run of prepare: the files that it writes, and how far it is.
class Run {
 public:
  Run(const PrepareOptions& options, const Tokenizer& tokenizer, const std::vector<TextInput>& inputs)
      : options_(options), tokenizer_(tokenizer), inputs_(inputs) {
    summary_.vocab = tokenizer.vocab_size();
    for (const std::string& prefix : prefixes_of(options)) summary_.outputs.push_back({.prefix = prefix});
  }

  // New files, or those of a run that was interrupted.
  Result<void> begin() {
    const auto file = MappedFile::open(state_path(options_));
    if (!file && file.error().os_error != ENOENT) return file.error();
    if (file) {
      const Json state = Json::parse(file.value().text(), nullptr, false);
      if (state.is_object() && goes_on_from(state)) return resume(state);
      if (options_.existing == Existing::kRefuse)
        return usage_error(
            "{}: of a run that was interrupted, with other options, or inputs that have changed; give it the same to "
            "go on, or begin anew with --force",
            state_path(options_));
      std::error_code ignored;
      fs::remove(state_path(options_), ignored);
    }
    for (const auto& output : summary_.outputs) {
      auto writer = TokenFileWriter::create(output.prefix, type());
      if (!writer) return writer.error();
      writers_.push_back(std::move(writer).value());
    }
    return {};
  }

  TextPosition position() const { return position_; }

  Result<void> add(const Block& block, const EncodedBlock& encoded) {
    if (!check_ || checked_ != block.input) {
      if (auto done = finish_input(); !done) return done;
      checked_ = block.input;
      check_.emplace(inputs_[checked_].path);
      faults_ = {};
    }
    if (auto text = check_->add(encoded.faults); !text) return text;
    if (faults_.first < 0 && encoded.faults.first >= 0) faults_.first = faults_.bytes + encoded.faults.first;
    faults_.bytes += encoded.faults.bytes;
    faults_.faults += encoded.faults.faults;
    if (encoded.error) return *encoded.error;
    for (const EncodedDocument& document : encoded.documents) {
      summary_.outputs[document.output].text_bytes += document.text_bytes;
      writers_[document.output].add_document(document.tokens);
    }
    position_ = block.end;
    return {};
  }

  // Saves a state to go on from, when the last one is old enough.
  Result<void> save_in_time() {
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - saved_).count() < options_.save_seconds) return {};
    saved_ = now;
    Json outputs = Json::array();
    for (size_t i = 0; i < writers_.size(); ++i) {
      const auto saved = writers_[i].save();
      if (!saved) return saved.error();
      outputs.push_back({saved.value().documents, saved.value().tokens, summary_.outputs[i].text_bytes});
    }
    const Json state = {{"options", options_of()},
                        {"inputs", inputs_until(position_.input + 1)},
                        {"outputs", outputs},
                        {"position", {position_.input, position_.bytes, position_.line}},
                        {"faults", {faults_.bytes, faults_.faults, faults_.first, summary_.text_faults}}};
    return write_file(state_path(options_), state.dump(1) + "\n");
  }

  Result<PrepareSummary> finish() {
    if (auto done = finish_input(); !done) return done.error();
    for (size_t i = 0; i < writers_.size(); ++i) {
      PrepareSummary::Output& output = summary_.outputs[i];
      summary_.documents += output.documents = writers_[i].num_documents();
      summary_.tokens += output.tokens = writers_[i].num_tokens();
      summary_.text_bytes += output.text_bytes;
    }
    if (summary_.documents == 0) return file_error("{}: no text in the inputs", options_.output);
    for (const auto& output : summary_.outputs)
      if (output.documents == 0)
        return usage_error("--split: none of the {} documents is in {}; give it a larger share", summary_.documents,
                           output.prefix);
    for (size_t i = 0; i < writers_.size(); ++i) {
      const PrepareSummary::Output& output = summary_.outputs[i];
      Json sidecar = {{"tokenizer", options_.tokenizer}, {"fingerprint", tokenizer_.fingerprint()},
                      {"vocab", summary_.vocab},         {"documents", output.documents},
                      {"tokens", output.tokens},         {"text_bytes", output.text_bytes},
                      {"format", formats_of(inputs_)}};
      if (!options_.splits.empty())
        sidecar["split"] = {{"name", options_.splits[i].name}, {"share", options_.splits[i].share}};
      if (auto done = put_in_place(writers_[i], output.prefix + ".json", sidecar.dump(2) + "\n"); !done)
        return done.error();
    }
    std::error_code ignored;  // without its parts it would be refused, and dropped by --force
    fs::remove(state_path(options_), ignored);
    return summary_;
  }

 private:
  TokenType type() const { return token_type_for(tokenizer_.vocab_size()); }

  // What must be equal for a run to go on from another's state: options, and the inputs of which something was read.
  Json options_of() const {
    Json splits = Json::array();
    for (const DocumentSplit& split : options_.splits) splits.push_back({split.name, split.share});
    return {
        {"version", 1}, {"tokenizer", tokenizer_.fingerprint()}, {"field", options_.text_field}, {"splits", splits}};
  }
  Json inputs_until(size_t end) const {
    Json inputs = Json::array();
    for (size_t i = 0; i < std::min(end, inputs_.size()); ++i)
      inputs.push_back(
          {in_json(inputs_[i].path), enum_name(inputs_[i].format), inputs_[i].file_bytes, inputs_[i].modified});
    return inputs;
  }
  bool goes_on_from(const Json& state) const {
    const Json inputs = state.value("inputs", Json::array());
    return state.value("options", Json()) == options_of() && !inputs.empty() && inputs == inputs_until(inputs.size());
  }

  Result<void> resume(const Json& state) {
    try {
      for (size_t i = 0; i < summary_.outputs.size(); ++i) {
        const Json& saved = state.at("outputs").at(i);
        auto writer = TokenFileWriter::resume(summary_.outputs[i].prefix, type(), {saved.at(0), saved.at(1)});
        if (!writer) return writer.error();
        writers_.push_back(std::move(writer).value());
        summary_.outputs[i].text_bytes = saved.at(2);
        summary_.resumed += writers_.back().num_documents();
      }
      const Json &at = state.at("position"), &faults = state.at("faults");
      position_ = {at.at(0), at.at(1), at.at(2)};
      faults_ = {faults.at(0), faults.at(1), faults.at(2)};
      summary_.text_faults = faults.at(3);
    } catch (const Json::exception& problem) {
      return file_error("{}: damaged ({}); remove it, and begin anew", state_path(options_), problem.what());
    }
    TRI_REQUIRE(position_.input < inputs_.size(), "{}: no such input", state_path(options_));
    checked_ = position_.input;
    check_.emplace(inputs_[checked_].path);
    return check_->add(faults_);
  }

  Result<void> finish_input() {
    if (!check_) return {};
    summary_.text_faults += check_->faults();
    return check_->finish();
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  const std::vector<TextInput>& inputs_;
  std::vector<TokenFileWriter> writers_;  // one an output
  PrepareSummary summary_;
  TextPosition position_;
  std::optional<TextCheck> check_;  // of inputs_[checked_]
  size_t checked_ = 0;
  TextFaults faults_;  // what check_ was given
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<std::vector<DocumentSplit>> parse_splits(const std::string& text) {
  std::vector<DocumentSplit> splits;
  double sum = 0;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, end - at);
    const size_t colon = entry.find(':');
    DocumentSplit split{.name = entry.substr(0, colon)};
    const std::string share = colon == std::string::npos ? "" : entry.substr(colon + 1);
    char* rest = nullptr;
    split.share = std::strtod(share.c_str(), &rest);
    const bool named = !split.name.empty() && split.name.find('/') == std::string::npos;
    if (!named || share.empty() || *rest != '\0' || !(split.share > 0 && split.share <= 1))
      return usage_error("--split: \"{}\"; expected NAME:SHARE, with a share above 0 up to 1: train:0.99,val:0.01",
                         entry);
    for (const DocumentSplit& other : splits)
      if (other.name == split.name) return usage_error("--split: {} is there twice", split.name);
    sum += split.share;
    splits.push_back(std::move(split));
    at = end + 1;
  }
  if (std::abs(sum - 1) > 1e-6) return usage_error("--split: the shares add up to {:g}, not to 1", sum);
  return splits;
}

size_t split_of(std::string_view document, const std::vector<DocumentSplit>& splits) {
  if (splits.size() < 2) return 0;
  const double place = static_cast<double>(xxh3_64(document) >> 11) * 0x1.0p-53;  // uniform in [0, 1)
  double end = 0;
  for (size_t i = 0; i + 1 < splits.size(); ++i)
    if (end += splits[i].share; place < end) return i;
  return splits.size() - 1;
}

Result<TokenOrigin> prepared_with(const std::string& prefix) {
  const std::string path = prefix + ".json";
  auto file = MappedFile::open(path);
  if (!file && file.error().os_error == ENOENT) return TokenOrigin{};
  if (!file) return file.error();
  const auto sidecar = nlohmann::json::parse(file.value().text(), nullptr, false);
  if (!sidecar.is_object() || !sidecar.contains("fingerprint") || !sidecar["fingerprint"].is_string())
    return file_error("{}: does not say which tokenizer made {}.bin; prepare it again, or remove this file", path,
                      prefix);
  TokenOrigin origin{.fingerprint = sidecar["fingerprint"]};
  if (const auto at = sidecar.find("tokenizer"); at != sidecar.end() && at->is_string()) origin.tokenizer = *at;
  if (const auto at = sidecar.find("vocab"); at != sidecar.end() && at->is_number_integer()) origin.vocab = *at;
  return origin;
}

Result<PrepareSummary> prepare(const PrepareOptions& options) {
  if (options.inputs.empty()) return usage_error("prepare needs at least one input file");
  // A config could not name such files, and JSON files hold the others. Inputs may have any name.
  std::vector<std::string> names{options.output, options.tokenizer, options.text_field};
  for (const DocumentSplit& split : options.splits) names.push_back(split.name);
  for (const std::string& name : names)
    if (utf8_prefix(name) < name.size()) return usage_error("{}: not UTF-8 text; give it another name", name);
  auto opened = open_tokenizer(options.tokenizer);
  if (!opened) return opened.error();
  const Tokenizer& tokenizer = *opened.value();
  if (auto free = check_output(options); !free) return free.error();
  const auto inputs = find_inputs(options.inputs, options.format);
  if (!inputs) return inputs.error();
  int64_t input_bytes = 0;
  for (const TextInput& input : inputs.value().files) input_bytes += input.file_bytes;
  if (const fs::path folder = fs::path(options.output).parent_path(); !folder.empty()) {
    std::error_code problem;
    fs::create_directories(folder, problem);
    if (problem) return system_error(problem.value(), "{}", folder.string());
  }
  Run run(options, tokenizer, inputs.value().files);
  if (auto begun = run.begin(); !begun) return begun.error();

  constexpr int64_t kMostRoundBytes = int64_t{256} << 20;  // of blocks that are large documents
  // Rounds of a few blocks a thread: tokenized in parallel, written in order, so memory is bounded and the order fixed.
  ProgressBar progress("tokenizing", "B", input_bytes);
  const size_t threads = static_cast<size_t>(std::max(options.threads, 1));
  for (size_t i = 0; i < run.position().input; ++i) progress.add(inputs.value().files[i].file_bytes);
  Blocks stream(inputs.value().files, run.position(), progress);
  for (bool more = true;;) {
    std::vector<Block> blocks;
    int64_t bytes = 0;
    const int64_t usual = static_cast<int64_t>(threads) * 4 * Blocks::kBlockBytes;
    while (more && (bytes < usual || (blocks.size() < threads && bytes < kMostRoundBytes))) {
      Block block;
      auto got = stream.next(block);
      if (!got) return got.error();
      more = got.value();
      bytes += static_cast<int64_t>(block.text.size());
      if (more) blocks.push_back(std::move(block));
    }
    const std::vector<EncodedBlock> encoded = encode_blocks(blocks, inputs.value().files, options, tokenizer);
    for (size_t i = 0; i < blocks.size(); ++i)
      if (auto added = run.add(blocks[i], encoded[i]); !added) return added.error();
    if (!more) break;
    if (auto saved = run.save_in_time(); !saved) return saved.error();
  }
  auto summary = run.finish();
  if (summary) summary.value().passed_over = inputs.value().passed_over;
  return summary;
}

}  // namespace tri
