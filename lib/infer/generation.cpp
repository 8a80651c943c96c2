#include "lib/infer/generation.h"

#include <optional>

#include "io/base/random.h"
#include "lib/infer/context.h"

namespace tri {
namespace {

// A request that is being generated, in one sequence of the cache.
struct Running {
  size_t request = 0;
  std::vector<int32_t> text;  // prompt and generated tokens
  size_t prompt = 0;          // its tokens
  size_t begin = 0;           // the first token in the cache
  size_t cached = 0;          // tokens in the cache

  std::span<const int32_t> generated() const { return std::span(text).subspan(prompt); }
};

class Generator {
 public:
  Generator(TextModel& model, std::span<const TextRequest> requests, const GenerationRules& rules)
      : model_(model), requests_(requests), rules_(rules), running_(static_cast<size_t>(model.sequences())) {}

  void run() {
    while (start_requests()) {
      append_prompts();
      sample();
    }
  }

 private:
  // Starts requests in idle sequences. Returns whether any request is running.
  bool start_requests() {
    bool any = false;
    for (std::optional<Running>& slot : running_) {
      if (!slot && next_ < requests_.size()) {
        const TextRequest& request = requests_[next_];
        TRI_REQUIRE(!request.prompt.empty() && request.tokens > 0,
                    "request {}: {} tokens in the prompt, {} to generate", next_, request.prompt.size(),
                    request.tokens);
        slot = {.request = next_++, .text = request.prompt, .prompt = request.prompt.size()};
        slot->begin = first_seen(*slot);
      }
      any |= slot.has_value();
    }
    return any;
  }

  size_t first_seen(const Running& of) const {
    return context_begin(of.prompt, of.text.size(), static_cast<size_t>(model_.context()));
  }

  // Appends everything that the model sees of the texts except their last tokens.
  void append_prompts() {
    std::vector<TextRow> rows;
    const auto flush = [&] {
      if (rows.empty()) return;
      model_.append(rows);
      rows.clear();
      if (rules_.on_pass) rules_.on_pass();
    };
    for (size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i]) continue;
      Running& r = *running_[i];
      if (const size_t begin = first_seen(r); begin != r.begin) {
        r.begin = begin;
        r.cached = 0;
      }
      while (r.cached + 1 < r.text.size() - r.begin) {
        rows.push_back(row_of(i));
        if (static_cast<int64_t>(rows.size()) == model_.rows()) flush();
      }
    }
    flush();
  }

  // Returns the next token of a sequence, and counts it as cached.
  TextRow row_of(size_t sequence) {
    Running& r = *running_[sequence];
    const size_t position = r.cached++;
    return {.sequence = static_cast<int>(sequence),
            .position = static_cast<int>(position),
            .token = r.text[r.begin + position]};
  }

  // Appends the last token of every text and samples the next.
  void sample() {
    std::vector<size_t> sequences;
    std::vector<TextRow> rows;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i]) continue;
      sequences.push_back(i);
      rows.push_back(row_of(i));
    }
    const std::vector<float> logits = model_.logits(rows);
    if (rules_.on_pass) rules_.on_pass();
    std::vector<int32_t> tokens(rows.size());
    if (model_.is_root()) {
      const size_t width = logits.size() / rows.size();
      TRI_REQUIRE(rules_.vocab > 0 && static_cast<size_t>(rules_.vocab) <= width, "a vocabulary of {}, logits of {}",
                  rules_.vocab, width);
      for (size_t i = 0; i < rows.size(); ++i) {
        const Running& r = *running_[sequences[i]];
        tokens[i] = sample_token(std::span(logits).subspan(i * width, static_cast<size_t>(rules_.vocab)),
                                 rules_.sampling, random_uniform(requests_[r.request].key, r.generated().size()));
      }
    }
    tokens = model_.broadcast(std::move(tokens));
    for (size_t i = 0; i < rows.size(); ++i) add(running_[sequences[i]], tokens[i]);
  }

  void add(std::optional<Running>& slot, int32_t token) {
    Running& r = *slot;
    std::optional<Finish> finish;
    if (token == rules_.end) {
      finish = Finish::kEnd;
    } else {
      r.text.push_back(token);
      if (rules_.on_token && rules_.on_token(r.request, r.generated()))
        finish = Finish::kStop;
      else if (static_cast<int>(r.generated().size()) == requests_[r.request].tokens)
        finish = Finish::kLength;
    }
    if (!finish) return;
    if (rules_.on_finish) rules_.on_finish(r.request, r.generated(), *finish);
    slot.reset();
  }

  TextModel& model_;
  const std::span<const TextRequest> requests_;
  const GenerationRules& rules_;
  std::vector<std::optional<Running>> running_;  // [sequence]
  size_t next_ = 0;                              // the next request to start
};

}  // namespace

void generate_texts(TextModel& model, std::span<const TextRequest> requests, const GenerationRules& rules) {
  Generator(model, requests, rules).run();
}

}  // namespace tri
