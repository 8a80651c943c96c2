#include "lib/infer/scoring.h"

#include <utility>

#include "lib/comm/job/job.h"
#include "lib/infer/context.h"

namespace tri {
namespace {

// The rows of the next pass, and the texts that they belong to.
struct Pass {
  std::vector<TextRow> rows;
  std::vector<size_t> texts;  // [row]
};

class Scorer {
 public:
  Scorer(TextModel& model, std::span<const ScoredText> texts, const std::function<void(int64_t)>& on_pass)
      : model_(model), texts_(texts), on_pass_(on_pass), scores_(texts.size()) {}

  std::vector<TextScore> run() {
    for (size_t text = 0; text < texts_.size(); ++text) {
      const ScoredText& t = texts_[text];
      TRI_REQUIRE(t.first >= 1 && t.first < t.tokens.size(), "text {}: scored from token {} of {}", text, t.first,
                  t.tokens.size());
      for (const ScoringWindow& window :
           scoring_windows(t.tokens.size(), t.first, static_cast<size_t>(model_.context())))
        add(text, window);
    }
    flush();
    return std::move(scores_);
  }

 private:
  // Windows that are complete need their sequence only within the pass; a window at the end of a pass continues in the
  // next one.
  void add(size_t text, const ScoringWindow& window) {
    if (sequence_ == model_.sequences()) flush();
    for (size_t at = window.begin; at < window.end; ++at) {
      const bool scored = at >= window.scored;
      pass_.rows.push_back({.sequence = sequence_,
                            .position = static_cast<int>(at - window.begin),
                            .token = texts_[text].tokens[at],
                            .target = scored ? texts_[text].tokens[at + 1] : kNoTarget});
      pass_.texts.push_back(text);
      if (static_cast<int64_t>(pass_.rows.size()) < model_.rows()) continue;
      const int current = sequence_;
      flush();
      sequence_ = current;
    }
    ++sequence_;
  }

  void flush() {
    sequence_ = 0;
    if (pass_.rows.empty()) return;
    const std::vector<TokenScore> scores = model_.score(pass_.rows);
    int64_t scored = 0;
    for (size_t i = 0; i < pass_.rows.size(); ++i) {
      if (pass_.rows[i].target == kNoTarget) continue;
      TextScore& sum = scores_[pass_.texts[i]];
      ++sum.tokens;
      ++scored;
      if (scores.empty()) continue;  // not the root
      sum.logprob += scores[i].logprob;
      sum.is_greedy &= scores[i].is_greedy;
    }
    if (on_pass_) on_pass_(scored);
    pass_ = {};
  }

  TextModel& model_;
  const std::span<const ScoredText> texts_;
  const std::function<void(int64_t)>& on_pass_;
  std::vector<TextScore> scores_;
  Pass pass_;
  int sequence_ = 0;  // of the next window
};

}  // namespace

std::vector<ScoringWindow> scoring_windows(size_t tokens, size_t first, size_t context) {
  TRI_REQUIRE(first >= 1 && first < tokens && context >= 1, "scored from token {} of {}, context {}", first, tokens,
              context);
  const size_t inputs = tokens - 1, scored = first - 1;
  if (inputs <= context) return {{0, inputs, scored}};
  if (inputs - scored <= context) return {{inputs - context, inputs, scored}};
  std::vector<ScoringWindow> windows;
  for (size_t next = scored; next < inputs; next = windows.back().end) {
    const size_t begin = context_begin(first, next + 1, context);
    size_t end = next + 1;
    while (end < inputs && context_begin(first, end + 1, context) == begin) ++end;
    windows.push_back({begin, end, next});
  }
  return windows;
}

std::vector<TextScore> score_texts(TextModel& model, std::span<const ScoredText> texts,
                                   const std::function<void(int64_t)>& on_pass) {
  std::vector<TextScore> scores = Scorer(model, texts, on_pass).run();
  Job* const job = model.job();
  if (job == nullptr) return scores;
  std::vector<std::vector<TextScore>> all = job->gather(model.is_root() ? scores : std::vector<TextScore>());
  for (std::vector<TextScore>& of_rank : all)
    if (!of_rank.empty()) return std::move(of_rank);
  return {};
}

}  // namespace tri
