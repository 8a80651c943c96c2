#include "io/tokens/prepare.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/schema.h"
#include "io/tokens/loss_mask.h"
#include "io/tokens/prepare_blocks.h"
#include "io/tokens/token_file.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string state_path(const PrepareOptions& options) { return options.output + ".json.part"; }

std::vector<std::string> prefixes_of(const PrepareOptions& options) {
  if (options.splits.empty()) return {options.output};
  std::vector<std::string> prefixes;
  for (const DocumentSplit& split : options.splits) prefixes.push_back(options.output + "_" + split.name);
  return prefixes;
}

Result<void> check_output(const PrepareOptions& options) {
  // A folder's name would produce files such as DIR/.bin, which are hidden.
  if (const std::string name = fs::path(options.output).filename(); name.empty() || name == "." || name == "..")
    return usage_error("--output {}: is a folder; name the files in it, such as {}", options.output,
                       (fs::path(options.output) / "text").string());
  if (options.existing == Existing::kOverwrite) return {};
  std::error_code ignored;  // an unreadable folder fails when it is written
  for (const std::string& prefix : prefixes_of(options))
    for (const char* extension : {".bin", ".idx", ".json", ".mask"})
      if (const std::string path = prefix + extension; fs::exists(path, ignored))
        return usage_error("{}: already exists; overwrite it with --force, or give another --output", path);
  return {};
}

// Publishes the token file, its mask (null: none) and its sidecar. A sidecar is never next to tokens of another file,
// and tokens that have a mask are never without it: a mask that is left next to other tokens is refused.
Result<void> put_in_place(TokenFileWriter& tokens, LossMaskWriter* mask, const std::string& prefix,
                          const std::string& sidecar) {
  const std::string path = prefix + ".json";
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  file.value().write(sidecar.data(), sidecar.size());
  if (auto written = file.value().flush(); !written) return written;
  std::error_code problem;
  fs::remove(path, problem);  // belongs to the overwritten output
  if (problem) return system_error(problem.value(), "{}: removing the file", path);
  if (mask != nullptr) {
    const auto fingerprint = tokens.fingerprint();
    if (!fingerprint) return fingerprint.error();
    if (auto done = mask->finish(fingerprint.value()); !done) return done;
  }
  if (auto done = tokens.finish(); !done) return done;
  if (mask == nullptr) fs::remove(prefix + ".mask", problem);  // of the overwritten output
  if (problem) return system_error(problem.value(), "{}.mask: removing the file", prefix);
  return file.value().commit();
}

// Returns "jsonl", or "jsonl, text" if the inputs differ.
std::string formats_of(const std::vector<TextInput>& inputs) {
  std::set<std::string_view> names;
  for (const TextInput& input : inputs) names.insert(enum_name(input.format));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Returns a path as the state stores it: JSON is UTF-8, but file names may be any bytes.
std::string in_json(const std::string& path) {
  if (utf8_prefix(path) == path.size()) return path;
  std::string hex = "bytes ";
  for (const char c : path) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// A position in an input's text.
struct TextPoint {
  int64_t bytes = 0;
  uint64_t hash = 0;  // XXH3 of these bytes
  bool end = false;   // whether the text ends there
};

// Returns how many of `points`, in order, are in the unchanged part of the input's text. A point within the text must
// follow a line end.
size_t unchanged_points(const std::string& path, const std::vector<TextPoint>& points) {
  auto reader = TextReader::open(path);
  if (!reader) return 0;
  Xxh3 hash;
  int64_t at = 0;
  size_t good = 0;
  char last = '\n';
  for (std::string block; good < points.size();) {
    if (!reader.value().next_lines(TextBlocks::kBlockBytes, block)) return good;
    if (block.empty()) {
      while (good < points.size() && points[good].bytes == at && points[good].hash == hash.digest()) ++good;
      return good;
    }
    size_t from = 0;
    while (good < points.size() && points[good].bytes - at < static_cast<int64_t>(block.size())) {
      const TextPoint& point = points[good];
      const auto cut = static_cast<size_t>(point.bytes - at);
      hash.update(block.data() + from, cut - from);
      from = cut;
      if (point.end || (cut > 0 ? block[cut - 1] : last) != '\n' || hash.digest() != point.hash) return good;
      ++good;
    }
    hash.update(block.data() + from, block.size() - from);
    at += static_cast<int64_t>(block.size());
    last = block.back();
  }
  return good;
}

bool begins_with_byte_order_mark(const std::string& path) {
  auto reader = TextReader::open(path);
  std::string block;
  return reader && reader.value().next_lines(1, block) && reader.value().had_byte_order_mark();
}

// One run of prepare: the files that it writes, and its progress.
class Run {
 public:
  Run(const PrepareOptions& options, const Tokenizer& tokenizer, const std::vector<TextInput>& inputs)
      : options_(options), tokenizer_(tokenizer), inputs_(inputs), ends_(inputs.size(), {.hash = Xxh3().digest()}) {
    now_.at.hash = Xxh3().digest();
    summary_.vocab = tokenizer.vocab_size();
    for (const std::string& prefix : prefixes_of(options)) summary_.outputs.push_back({.prefix = prefix});
  }

  // Opens the files of an interrupted run to continue it, or new files. Existing::kOverwrite starts over if the
  // interrupted run cannot be continued.
  Result<void> begin() {
    const auto file = MappedFile::open(state_path(options_));
    if (!file && file.error().os_error != ENOENT) return file.error();
    if (file) {
      auto resumed = resume(file.value().text());
      if (resumed || options_.existing == Existing::kRefuse) return resumed;
      start_over();
    }
    std::error_code ignored;  // files are removed only after the writers hold the locks: another process may use them
    for (const auto& output : summary_.outputs) {
      auto writer = TokenFileWriter::create(output.prefix, type());
      if (!writer) return writer.error();
      writers_.push_back(std::move(writer).value());
      if (!options_.chat) {
        fs::remove(output.prefix + ".mask.part", ignored);  // of an interrupted run with conversations
        continue;
      }
      auto mask = LossMaskWriter::create(output.prefix);
      if (!mask) return mask.error();
      masks_.push_back(std::move(mask).value());
    }
    if (file) fs::remove(state_path(options_), ignored);
    return {};
  }

  TextPosition position() const { return now_.at; }

  Result<void> add(TextBlock& block, const EncodedBlock& encoded) {
    if (!check_ || checked_ != block.begin.input) {
      if (auto done = finish_input(); !done) return done;
      if (check_) ends_[checked_] = now_.at;
      checked_ = block.begin.input;
      check_.emplace(inputs_[checked_].path);
      now_.at = {.input = checked_, .hash = Xxh3().digest()};
      now_.faults = {};
      if (num_documents() > 0) mark();  // the run returns to this point if the input turns out not to be text
    }
    if (block.hash) hash_ = std::move(*block.hash);
    if (encoded.error) return *encoded.error;
    if (auto text = check_->add(encoded.faults); !text) return text;
    size_t added = 0;
    const auto add_until = [&](size_t end) {
      for (; added < end; ++added) {
        const EncodedDocument& document = encoded.documents[added];
        summary_.outputs[document.output].text_bytes += document.text_bytes;
        writers_[document.output].add_document(document.tokens);
        if (options_.chat) masks_[document.output].add(document.trained);
      }
    };
    const TextFaults before = now_.faults;
    size_t hashed = 0;  // bytes of the block
    const auto hash_until = [&](size_t end) {
      hash_.update(block.text.data() + hashed, end - hashed);
      hashed = end;
    };
    const auto move_to = [&](const BadDocument& bad) {
      hash_until(static_cast<size_t>(bad.bytes));
      now_.at = {.input = checked_,
                 .bytes = block.begin.bytes + bad.bytes,
                 .line = std::max(bad.line, block.begin.line),
                 .hash = hash_.digest()};
      now_.faults = sum_of(before, bad.faults);
    };
    for (const BadDocument& bad : encoded.bad) {
      add_until(bad.documents);
      if (!may_skip()) {
        move_to(bad);
        return refusal(bad);
      }
      // A run returns to this point if the lines are corrected.
      if (now_.skipped == 0) {
        move_to(bad);
        mark();
      }
      skip(bad);
    }
    add_until(encoded.documents.size());
    hash_until(block.text.size());
    now_.at = block.end;
    now_.at.hash = hash_.digest();
    now_.faults = sum_of(before, encoded.faults);
    return {};
  }

  // Saves a state to continue from if the last one is old enough.
  Result<void> save_in_time() {
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - saved_).count() < options_.save_seconds) return {};
    saved_ = now;
    return save();
  }

  // Returns the error that ends a run, after saving the work before it. A run without a document leaves nothing.
  Error stopped(Error error) {
    const int64_t documents = num_documents();
    if (documents > 0 && save())
      error.message += fmt::format("; {} before it {} saved, and the same command continues after that",
                                   counted(documents, "document"), documents == 1 ? "is" : "are");
    return error;
  }

  Result<PrepareSummary> finish() {
    // Before finish_input(), which counts the faults of the last input: the saved state counts them again on resume.
    if (auto within = check_share(); !within) return within.error();
    if (auto done = finish_input(); !done) return stopped(done.error());
    for (size_t i = 0; i < writers_.size(); ++i) {
      PrepareSummary::Output& output = summary_.outputs[i];
      summary_.documents += output.documents = writers_[i].num_documents();
      summary_.tokens += output.tokens = writers_[i].num_tokens();
      summary_.text_bytes += output.text_bytes;
      if (options_.chat) output.trained_tokens = masks_[i].num_trained();
    }
    summary_.skipped = now_.skipped;
    if (summary_.documents == 0) return file_error("{}: the inputs contain no text", options_.output);
    for (const auto& output : summary_.outputs)
      if (output.documents == 0)
        return usage_error("--split: none of the {} documents is in {}; give it a larger share", summary_.documents,
                           output.prefix);
    for (const auto& output : summary_.outputs)
      if (output.trained_tokens == 0)
        return usage_error(
            "--chat: no token of {} is trained, since no message has a role with train: true; set it for a role in the "
            "template",
            output.prefix);
    for (size_t i = 0; i < writers_.size(); ++i) {
      const PrepareSummary::Output& output = summary_.outputs[i];
      OrderedJson sidecar = {{"schema", kOriginSchema},
                             {"tokenizer", options_.tokenizer},
                             {"fingerprint", tokenizer_.fingerprint()},
                             {"vocab", summary_.vocab},
                             {"documents", output.documents},
                             {"tokens", output.tokens},
                             {"text_bytes", output.text_bytes},
                             {"format", formats_of(inputs_)},
                             {"skipped", summary_.skipped}};
      if (!options_.splits.empty())
        sidecar["split"] = {{"name", options_.splits[i].name}, {"share", options_.splits[i].share}};
      if (output.trained_tokens) sidecar["trained_tokens"] = *output.trained_tokens;
      LossMaskWriter* const mask = options_.chat ? &masks_[i] : nullptr;
      if (auto done = put_in_place(writers_[i], mask, output.prefix, sidecar.dump(2) + "\n"); !done)
        return done.error();
    }
    std::error_code ignored;  // without its parts the state would be refused, and dropped by --force
    fs::remove(state_path(options_), ignored);
    return summary_;
  }

 private:
  // A point to continue from.
  struct Mark {
    struct Output {
      int64_t documents = 0, tokens = 0, text_bytes = 0;
    };
    TextPosition at;
    bool hashed = true;  // states of earlier versions have no hash
    std::vector<Output> outputs;
    TextFaults faults;        // of the input, so far
    int64_t text_faults = 0;  // of the inputs before it
    int64_t skipped = 0;
  };
  static constexpr size_t kMostMarks = 128;  // beyond it, every second one is dropped, but never the first

  TokenType type() const { return token_type_for(tokenizer_.vocab_size()); }

  int64_t num_documents() const {
    int64_t documents = 0;
    for (const TokenFileWriter& writer : writers_) documents += writer.num_documents();
    return documents;
  }

  static TextFaults sum_of(TextFaults sum, const TextFaults& next) {
    if (sum.first < 0 && next.first >= 0) sum.first = sum.bytes + next.first;
    sum.bytes += next.bytes;
    sum.faults += next.faults;
    return sum;
  }

  // Returns whether a run with these options could have saved this point. A share is checked at the end.
  bool allows(const Mark& point) const {
    return options_.skip_bad.share > 0 || point.skipped <= options_.skip_bad.most;
  }

  bool may_skip() const {
    // A share refers to all documents, whose number is known only at the end, where check_share() decides. Until then
    // the run stops only if the bad documents far exceed the share of those read so far.
    constexpr int64_t kFirst = 10000, kSlack = 1000;
    const int64_t skipped = now_.skipped + 1;
    if (options_.skip_bad.most > 0) return skipped <= options_.skip_bad.most;
    return options_.skip_bad.share > 0 &&
           static_cast<double>(skipped - kSlack) <=
               options_.skip_bad.share * static_cast<double>(std::max(num_documents() + skipped, kFirst));
  }

  // Checks that the bad documents are at most the share of all documents that --skip-bad allows. Otherwise saves the
  // work, for a larger share or corrected lines, and fails with kFile.
  Result<void> check_share() {
    const int64_t all = num_documents() + now_.skipped;
    const double share = options_.skip_bad.share;
    if (share <= 0 || static_cast<double>(now_.skipped) <= share * static_cast<double>(all)) return {};
    const bool saved = num_documents() > 0 && save();
    return file_error(
        "{} of {} documents are bad, more than --skip-bad {:g} allows{}; give a larger --skip-bad, or "
        "correct the lines{}",
        now_.skipped, all, share, last_bad_.empty() ? "" : "; the last one: " + last_bad_,
        saved ? "; the next run continues this one" : "");
  }

  std::string place_of(const BadDocument& bad) const {
    return inputs_[checked_].path + (bad.line > 0 ? fmt::format(":{}", bad.line) : "");
  }
  void skip(const BadDocument& bad) {
    constexpr int64_t kNamed = 10;
    ++now_.skipped;
    last_bad_ = fmt::format("{}: {}", place_of(bad), bad.why);
    if (now_.skipped <= kNamed) log_warn("skipped {}", last_bad_);
    if (now_.skipped == kNamed) log_warn("further skipped documents are counted but not listed");
  }
  Error refusal(const BadDocument& bad) const {
    const SkipBad& allowed = options_.skip_bad;
    const std::string what = bad.line > 0 ? "line" : "file";
    if (allowed.any())
      return file_error("{}: {}; {} skipped before, and --skip-bad allows {:g}", place_of(bad), bad.why,
                        counted(now_.skipped, what),
                        allowed.most > 0 ? static_cast<double>(allowed.most) : allowed.share);
    return file_error("{}: {}; correct or remove the {}, or skip it with --skip-bad 1", place_of(bad), bad.why, what);
  }

  // Creates a point to continue from; the next save() writes it.
  void mark() {
    now_.outputs.clear();
    for (size_t i = 0; i < writers_.size(); ++i)
      now_.outputs.push_back({writers_[i].num_documents(), writers_[i].num_tokens(), summary_.outputs[i].text_bytes});
    now_.text_faults = summary_.text_faults;
    marks_.push_back(now_);
    if (marks_.size() > kMostMarks)
      for (size_t i = 1; i + 1 < marks_.size(); ++i) marks_.erase(marks_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  Result<void> save() {
    for (LossMaskWriter& mask : masks_)
      if (auto saved = mask.save(); !saved) return saved;
    for (TokenFileWriter& writer : writers_)
      if (auto saved = writer.save(); !saved) return saved.error();
    mark();
    return write_state();
  }
  Result<void> write_state() const {
    OrderedJson marks = OrderedJson::array();
    for (const Mark& mark : marks_) marks.push_back(json_of(mark));
    const OrderedJson state = {
        {"options", options_of()}, {"inputs", inputs_until(now_.at.input + 1)}, {"marks", marks}};
    return write_file(state_path(options_), state.dump() + "\n");
  }

  // Returns the options that must be equal for a run to continue from another's state.
  OrderedJson options_of() const {
    OrderedJson splits = OrderedJson::array();
    for (const DocumentSplit& split : options_.splits) splits.push_back({split.name, split.share});
    OrderedJson options = {
        {"version", 1}, {"tokenizer", tokenizer_.fingerprint()}, {"field", options_.text_field}, {"splits", splits}};
    if (options_.chat) options["chat"] = options_.chat->fingerprint();
    return options;
  }
  // Lists the inputs read so far: name, format, size, time, and the end of their text.
  OrderedJson inputs_until(size_t end) const {
    OrderedJson inputs = OrderedJson::array();
    for (size_t i = 0; i < std::min(end, inputs_.size()); ++i)
      inputs.push_back({in_json(inputs_[i].path), enum_name(inputs_[i].format), inputs_[i].file_bytes,
                        inputs_[i].modified, ends_[i].bytes, hex64(ends_[i].hash)});
    return inputs;
  }

  static OrderedJson json_of(const Mark& mark) {
    OrderedJson outputs = OrderedJson::array();
    for (const Mark::Output& output : mark.outputs)
      outputs.push_back({output.documents, output.tokens, output.text_bytes});
    return {{"position", {mark.at.input, mark.at.bytes, mark.at.line}},
            {"hash", hex64(mark.at.hash)},
            {"outputs", outputs},
            {"faults", {mark.faults.bytes, mark.faults.faults, mark.faults.first, mark.text_faults}},
            {"skipped", mark.skipped}};
  }
  // Throws OrderedJson::exception.
  Mark mark_of(const OrderedJson& json) const {
    const OrderedJson &at = json.at("position"), &faults = json.at("faults");
    const auto hash = parse_hex64(json.value("hash", ""));
    Mark mark{.at = {at.at(0), at.at(1), at.at(2), hash.value_or(0)},
              .hashed = hash.has_value(),
              .faults = {faults.at(0), faults.at(1), faults.at(2)},
              .text_faults = faults.at(3),
              .skipped = json.value("skipped", int64_t{0})};
    for (size_t i = 0; i < summary_.outputs.size(); ++i) {
      const OrderedJson& output = json.at("outputs").at(i);
      mark.outputs.push_back({output.at(0), output.at(1), output.at(2)});
    }
    return mark;
  }

  // Returns how many of marks_ are in unchanged text; all inputs before the last of them are unchanged. Throws
  // OrderedJson::exception.
  size_t unchanged_marks(const OrderedJson& inputs) {
    size_t unchanged = 0;
    for (size_t i = 0; i < std::min(inputs.size(), inputs_.size()); ++i) {
      const OrderedJson& was = inputs.at(i);
      const TextInput& now = inputs_[i];
      if (was.at(0) != in_json(now.path) || was.at(1) != enum_name(now.format)) break;
      if (was.size() > 5)
        ends_[i] = {.bytes = was.at(4), .hash = parse_hex64(was.at(5).get<std::string>()).value_or(0)};
      std::vector<TextPoint> points;
      bool hashed = was.size() > 5;
      for (size_t m = unchanged; m < marks_.size() && marks_[m].at.input == i; ++m) {
        points.push_back(
            {marks_[m].at.bytes, marks_[m].at.hash, now.format == TextFormat::kText && marks_[m].at.bytes > 0});
        hashed = hashed && marks_[m].hashed;
      }
      const size_t marks = points.size();
      // States without hashes count the byte order mark at the start of a file, which is no longer part of the text.
      const bool within = marks > 0 && points.back().bytes > 0;
      if (within && !hashed && begins_with_byte_order_mark(now.path)) {
        counted_otherwise_ = now.path;
        break;
      }
      if (was.at(2) == now.file_bytes && was.at(3) == now.modified) {
        unchanged += marks;
        continue;
      }
      if (!hashed) break;
      if (i + 1 < inputs.size()) points.push_back({ends_[i].bytes, ends_[i].hash, true});
      const size_t good = unchanged_points(now.path, points);
      unchanged += std::min(good, marks);
      if (good < points.size()) break;
    }
    return unchanged;
  }

  Result<void> resume(std::string_view text) {
    const std::string path = state_path(options_);
    bool changed = false;
    try {
      const OrderedJson state = parse_json<OrderedJson>(text);
      if (state.at("options") != options_of())
        return usage_error(
            "{}: belongs to an interrupted run with other options (--tokenizer, --field, --chat or --split); give the "
            "same options to continue it, or start over with --force",
            path);
      if (state.contains("marks"))
        for (const OrderedJson& mark : state.at("marks")) marks_.push_back(mark_of(mark));
      else
        marks_.push_back(mark_of(state));
      const size_t saved = marks_.size();
      marks_.resize(unchanged_marks(state.at("inputs")));
      changed = marks_.size() < saved;
      if (const std::string& moved = counted_otherwise_; marks_.empty() && !moved.empty())
        return usage_error(
            "{}: was written by an earlier version of trireme, which counted the byte order mark at the start of {}; "
            "this version does not; start over with --force",
            path, moved);
      if (marks_.empty())
        return usage_error(
            "{}: belongs to an interrupted run, but its inputs have changed from the first one on; give the same "
            "inputs to continue it, or start over with --force",
            path);
      if (!allows(marks_.back()))
        return usage_error(
            "{}: belongs to an interrupted run that skipped {}, more than --skip-bad {} allows; allow as many to "
            "continue it, or start over with --force",
            path, counted(marks_.back().skipped, "bad document"), options_.skip_bad.most);
      const TextPosition& at = marks_.back().at;
      if (changed)
        log_warn("inputs have changed since the run was interrupted: it continues at {}:{}", inputs_[at.input].path,
                 at.line);
    } catch (const OrderedJson::exception& problem) {
      return file_error("{}: damaged ({}); remove it, and start over", path, problem.what());
    }
    now_ = marks_.back();
    for (size_t i = 0; i < summary_.outputs.size(); ++i) {
      const Mark::Output& output = now_.outputs[i];
      auto writer = TokenFileWriter::resume(summary_.outputs[i].prefix, type(), {output.documents, output.tokens});
      if (!writer) return writer.error();
      writers_.push_back(std::move(writer).value());
      if (options_.chat) {
        auto mask = LossMaskWriter::resume(summary_.outputs[i].prefix, output.tokens);
        if (!mask) return mask.error();
        masks_.push_back(std::move(mask).value());
      }
      summary_.outputs[i].text_bytes = output.text_bytes;
      summary_.resumed += output.documents;
    }
    summary_.text_faults = now_.text_faults;
    checked_ = now_.at.input;
    check_.emplace(inputs_[checked_].path);
    if (auto added = check_->add(now_.faults); !added) return added;
    // The dropped points would fit again if the inputs were changed back, but the token files no longer hold their
    // tokens.
    return changed ? write_state() : Result<void>();
  }

  // Undoes what resume() did before it failed.
  void start_over() {
    masks_.clear();
    writers_.clear();  // releases the locks
    marks_.clear();
    check_.reset();
    checked_ = 0;
    now_ = {};
    now_.at.hash = Xxh3().digest();
    ends_.assign(inputs_.size(), {.hash = Xxh3().digest()});
    for (auto& output : summary_.outputs) output.text_bytes = 0;
    summary_.resumed = summary_.text_faults = 0;
  }

  Result<void> finish_input() {
    if (!check_) return {};
    if (auto done = check_->finish(); !done) return done;
    summary_.text_faults += check_->faults();
    return {};
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  const std::vector<TextInput>& inputs_;
  std::vector<TextPosition> ends_;        // [input]: the end of its text, once it is read
  std::vector<TokenFileWriter> writers_;  // one per output
  std::vector<LossMaskWriter> masks_;     // with conversations: one per output
  PrepareSummary summary_;
  Xxh3 hash_;                       // of the text of inputs_[checked_] up to now_.at
  Mark now_;                        // contents of a state saved now
  std::vector<Mark> marks_;         // saved, in order
  std::optional<TextCheck> check_;  // of inputs_[checked_]
  size_t checked_ = 0;
  std::string last_bad_;           // the last one that this process skipped
  std::string counted_otherwise_;  // the input for which an earlier version's state has other offsets
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
      if (other.name == split.name) return usage_error("--split: {} is given twice", split.name);
    sum += split.share;
    splits.push_back(std::move(split));
    at = end + 1;
  }
  if (std::abs(sum - 1) > 1e-6) return usage_error("--split: the shares add up to {:g}, not to 1", sum);
  return splits;
}

Result<SkipBad> parse_skip_bad(const std::string& text) {
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  const bool plain = text.find_first_not_of("0123456789.") == std::string::npos;
  if (text.empty() || *rest != '\0' || !plain || value > 1e15)
    return usage_error("--skip-bad {}: expected a number of documents (100), or a share of them (0.001)", text);
  if (text.find('.') == std::string::npos) return SkipBad{.most = static_cast<int64_t>(value)};
  if (value > 1) return usage_error("--skip-bad {}: a share is at most 1.0", text);
  return SkipBad{.share = value};
}

size_t split_of(std::string_view document, const std::vector<DocumentSplit>& splits) {
  if (splits.size() < 2) return 0;
  const double place = static_cast<double>(xxh3_64(document) >> 11) * 0x1.0p-53;  // uniform in [0, 1)
  double end = 0;
  for (size_t i = 0; i + 1 < splits.size(); ++i)
    if (end += splits[i].share; place < end) return i;
  return splits.size() - 1;
}

Result<PrepareSummary> prepare(const PrepareOptions& options) {
  if (options.inputs.empty()) return usage_error("prepare needs at least one input file");
  // A config could not name such files, and JSON files store the other names. Inputs may have any name.
  std::vector<std::string> names{options.output, options.tokenizer, options.text_field};
  for (const DocumentSplit& split : options.splits) names.push_back(split.name);
  for (const std::string& name : names)
    if (utf8_prefix(name) < name.size()) return usage_error("{}: not UTF-8 text; give it another name", name);
  auto opened = open_tokenizer(options.tokenizer);
  if (!opened) return opened.error();
  const Tokenizer& tokenizer = *opened.value();
  if (options.chat)
    if (auto fits = check_chat(*options.chat, tokenizer, options.tokenizer); !fits) return fits.error();
  if (auto free = check_output(options); !free) return free.error();
  const auto inputs = find_inputs(options.inputs, options.format);
  if (!inputs) return inputs.error();
  if (options.chat)
    for (const TextInput& input : inputs.value().files)
      if (input.format != TextFormat::kJsonl)
        return usage_error(
            "--chat: conversations must be JSON lines, but the name of {} does not end as .jsonl does; if it holds "
            "them, give --format jsonl",
            input.path);
  int64_t input_bytes = 0;
  std::set<std::string> names_of_inputs;
  for (const TextInput& input : inputs.value().files) {
    input_bytes += input.file_bytes;
    if (!names_of_inputs.insert(fs::path(input.path).lexically_normal()).second)
      log_warn("{}: is among the inputs more than once; so are its documents in the output", input.path);
  }
  if (const fs::path folder = fs::path(options.output).parent_path(); !folder.empty()) {
    std::error_code problem;
    fs::create_directories(folder, problem);
    if (problem) return system_error(problem.value(), "{}", folder.string());
  }
  Run run(options, tokenizer, inputs.value().files);
  if (auto begun = run.begin(); !begun) return begun.error();

  constexpr int64_t kMostRoundBytes = int64_t{256} << 20;  // blocks may be large documents
  // Rounds have a few blocks per thread, tokenized in parallel and written in order: memory is bounded, order fixed.
  ProgressBar progress("tokenizing", "B", input_bytes);
  const size_t threads = static_cast<size_t>(std::max(options.threads, 1));
  for (size_t i = 0; i < run.position().input; ++i) progress.add(inputs.value().files[i].file_bytes);
  TextBlocks stream(inputs.value().files, run.position(), progress);
  for (bool more = true;;) {
    std::vector<TextBlock> blocks;
    int64_t bytes = 0;
    const int64_t usual = static_cast<int64_t>(threads) * 4 * TextBlocks::kBlockBytes;
    std::optional<Error> unread;  // after these blocks
    while (more && (bytes < usual || (blocks.size() < threads && bytes < kMostRoundBytes))) {
      TextBlock block;
      auto got = stream.next(block);
      if (!got) unread = got.error();
      more = got && got.value();
      bytes += static_cast<int64_t>(block.text.size());
      if (more) blocks.push_back(std::move(block));
    }
    const std::vector<EncodedBlock> encoded = encode_blocks(blocks, inputs.value().files, options, tokenizer);
    for (size_t i = 0; i < blocks.size(); ++i)
      if (auto added = run.add(blocks[i], encoded[i]); !added) return run.stopped(added.error());
    if (unread) return run.stopped(*unread);
    if (!more) break;
    if (auto saved = run.save_in_time(); !saved) return saved.error();
  }
  auto summary = run.finish();
  if (summary) summary.value().passed_over = inputs.value().passed_over;
  return summary;
}

}  // namespace tri
