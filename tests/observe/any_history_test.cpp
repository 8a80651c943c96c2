// The time of any history is divided into categories, wherever the history ends.
#include <cmath>
#include <random>

#include "tests/observe/story.h"

namespace tri::test {
namespace {

// Returns an arbitrary history: clocks that jump and differ between hosts, attempts without an end, spans over steps,
// events of the driver and of the doctor, and events that make no sense.
Story random_story(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto seconds = [&](double most) { return most * (random() % 10001) / 10000.0; };
  Story story;
  double clock = 1000;
  const int attempts = 1 + below(6);
  const bool supervised = below(2) == 0;
  for (int a = 0; a < attempts; ++a) {
    clock += seconds(600) - (below(5) == 0 ? seconds(2000) : 0);
    Story::Job job;
    if (below(3) > 0)
      job = {.name = std::to_string(below(3)),
             .submitted = std::max(1.0, clock - seconds(900)),
             .allocated = std::max(1.0, clock - seconds(500))};
    if (supervised) story.driver(RunEventKind::kAttemptStart, a, clock - seconds(20));
    story.begin(clock, job);
    if (below(8) == 0) continue;
    story.start(below(50));
    for (int i = below(30); i > 0; --i) {
      switch (below(9)) {
        case 0:
          story.span(below(2) == 0 ? "checkpoint" : "evaluation", seconds(20));
          break;
        case 1:
          story.span("diagnosis", seconds(20));
          break;
        case 2:
          story.wait(seconds(20) - 10);
          break;
        case 3:
          story.published();
          break;
        case 4:
          story.hang(clock + seconds(100));
          break;
        default:
          story.steps(1 + below(5), seconds(10));
          break;
      }
      if (below(40) == 0) story.failure();
    }
    // Ranks of other nodes, with different clocks.
    for (int i = below(3); i > 0; --i) story.elsewhere(seconds(200) - 100);
    if (below(3) == 0) story.failure(6);
    if (below(3) == 0) story.end(below(2) == 0 ? 0 : 75);
    if (!supervised) continue;
    const double end = story.now() + seconds(60) - 10;
    if (below(2) == 0)
      story.driver_names(below(3) == 0 ? "drained" : "node lost", a, end - seconds(20), end);
    else
      story.driver(RunEventKind::kAttemptEnd, a, end);
    if (below(3) == 0) story.driver(RunEventKind::kSpan, a, end + seconds(20));  // the doctor
    story.driver(RunEventKind::kDecision, a, end + seconds(30));
    if (below(3) == 0) story.driver(RunEventKind::kExclusion, a, end + seconds(30));
  }
  return story;
}

// Within 0.1 %; actually far closer.
void expect_shared_out(const EffectiveTime& time) {
  expect_partition(time);
  const double sum = std::accumulate(time.seconds.begin(), time.seconds.end(), 0.0);
  EXPECT_LE(std::abs(sum - time.wall()), 1e-3 * time.wall());
  for (const double seconds : time.seconds) EXPECT_GE(seconds, 0);
  for (const EffectiveShare& share : effective_shares(time)) {
    EXPECT_GE(share.share, 0) << share.name;
    // MegaScale's share counts each step as long as the median one.
    EXPECT_TRUE(share.share <= 1 + 1e-9 || share.name == "megascale") << share.name << " " << share.share;
  }
}

TEST(EffectiveTime, categories_share_out_wall_time_of_any_history) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Story story = random_story(seed);
    SCOPED_TRACE(seed);
    const EffectiveTime time = story.time();
    expect_shared_out(time);
    double steps = 0, data = 0;
    int64_t lines = 0;
    for (const AttemptSteps& written : story.history().steps)
      for (const StepLine& step : written.steps) steps += step.seconds, data += step.data_seconds, ++lines;
    EXPECT_LE(time.of(WallTime::kProductive), steps + 1e-3);
    EXPECT_EQ(time.kept_steps + time.lost_steps, lines);
    EXPECT_EQ(time.attempts.size(), static_cast<size_t>(story.attempts()));
    if (HasFailure()) return;
  }
}

// Everything is killed at some event: only what was written until then exists.
TEST(EffectiveTime, categories_share_out_wall_time_wherever_a_history_ends) {
  for (unsigned seed = 5000; seed < 5200; ++seed) {
    const EventsAndSteps whole = random_story(seed).history();
    for (size_t events = 1; events <= whole.events.size(); ++events) {
      EventsAndSteps cut{.events = {whole.events.begin(), whole.events.begin() + static_cast<std::ptrdiff_t>(events)}};
      for (const AttemptSteps& steps : whole.steps) {
        const bool begun = std::any_of(cut.events.begin(), cut.events.end(), [&](const RunEvent& event) {
          return event.kind == RunEventKind::kStart && event.attempt == steps.attempt;
        });
        if (begun) cut.steps.push_back(steps);
      }
      // Some steps of the last attempt have not been written yet.
      if (!cut.steps.empty()) {
        std::vector<StepLine>& last = cut.steps.back().steps;
        last.resize(last.size() * (events % 4) / 3);
      }
      const auto time = effective_time(cut);
      SCOPED_TRACE(fmt::format("seed {}, {} of {} events", seed, events, whole.events.size()));
      if (time) expect_shared_out(*time);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tri::test
