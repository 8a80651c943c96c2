// The text report of a hang: the verdict, the suspects' records, and those of all other ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "io/base/format.h"
#include "lib/fault/hang_locator.h"
#include "lib/fault/rank_text.h"
#include "lib/fault/wait_graph.h"

namespace tri {
namespace {

constexpr int kMostRows = 64;        // above this number of ranks, similar ranks share a row
constexpr size_t kMostDetailed = 8;  // suspects
constexpr size_t kLogLines = 8, kFrames = 16, kStacks = 3;

using Out = std::back_insert_iterator<std::string>;

// Whether the innermost functions of the stack are ones in which idle threads wait.
bool is_idle(const StackRecord& stack) {
  constexpr std::array kResting{"futex",     "cond_wait",  "cond_timedwait", "cond_clockwait", "poll",
                                "nanosleep", "epoll_wait", "select",         "sigwait",        "syscall"};
  if (stack.symbols.empty()) return true;
  constexpr size_t kInnermost = 2;
  for (size_t i = 0; i < std::min(kInnermost, stack.symbols.size()); ++i)
    for (const char* name : kResting)
      if (stack.symbols[i].find(name) != std::string::npos) return true;
  return false;
}

// Returns the stacks to print: those of busy threads first, then the deeper ones.
std::vector<const StackRecord*> busiest(const RankRecord& record) {
  std::vector<const StackRecord*> stacks;
  for (const StackRecord& stack : record.stacks)
    if (!stack.symbols.empty()) stacks.push_back(&stack);
  std::stable_sort(stacks.begin(), stacks.end(), [](const StackRecord* a, const StackRecord* b) {
    return std::pair(is_idle(*a), b->symbols.size()) < std::pair(is_idle(*b), a->symbols.size());
  });
  if (stacks.size() > kStacks) stacks.resize(kStacks);
  return stacks;
}

void write_channels(Out out, const RankRecord& r) {
  if (r.channels.empty()) return;
  fmt::format_to(out, "  {:<16} {:<12} {:>10} {:>10} {:>10} {:>10}  {}\n", "channel", "kind", "enqueued", "joined",
                 "sent", "completed", "last enqueued");
  for (const ChannelRecord& c : r.channels) {
    if (c.members.size < 2) continue;
    fmt::format_to(out, "  {:<16} {:<12} {:>10} {:>10} {:>10} {:>10}  {}{}\n", c.name, enum_name(c.kind), c.enqueued,
                   c.joined, c.sent, c.completed, enum_name(c.operation),
                   comes_before(c.completed, c.enqueued) ? "  <- incomplete" : "");
  }
}

void write_tokens_and_files(Out out, const RankRecord& r) {
  for (size_t loader = 0; loader < 2; ++loader) {
    const LoaderRecord& f = r.loaders[loader];
    if (f.reader < 0) continue;
    fmt::format_to(out, "  {} tokens: waits for batch {} from the reader of rank {}",
                   loader == 0 ? "training" : "validation", f.wanted, f.reader);
    if (f.reader_state != ReaderState::kNone)
      fmt::format_to(out, "; its own reader {} for {} and has completed {} batches", enum_name(f.reader_state),
                     format_duration(f.seconds), f.published);
    fmt::format_to(out, "\n");
  }
  if (r.writer.state != WriterState::kIdle)
    fmt::format_to(out, "  its {} and has made no progress for {}\n", writer_text(r.writer),
                   format_duration(r.writer.seconds));
}

void write_rank(Out out, const WaitGraph& graph, const RankRecord& r) {
  fmt::format_to(out, "  process {} {}, phase {} for {}, step {} of {}\n", r.process, enum_name(r.process_state),
                 enum_name(r.phase), format_duration(r.phase_seconds), r.step, r.steps);
  fmt::format_to(out, "  training thread {} for {}; last event {} ago; its watchdog last ran {} ago\n",
                 enum_name(r.host_state), format_duration(r.host_seconds), format_duration(r.last_event_seconds),
                 format_duration(r.beat_seconds));
  if (r.actions_enqueued > 0)
    fmt::format_to(out, "  actions: {} enqueued, {} entered, {} running: {}\n", r.actions_enqueued, r.action_entered,
                   r.action_running, action_text(r));
  if (r.connection != 0)
    fmt::format_to(out, "  establishes connection {} with {}\n", r.connection_name, ranks_text(connection_members(r)));
  for (const std::string& wait : graph.waits_text(r.world_rank)) fmt::format_to(out, "  waits for {}\n", wait);
  if (r.failure)
    fmt::format_to(out, "  failed with status {}{}: {}\n", r.failure->code,
                   r.failure->consequence ? " as a consequence of another rank's failure" : "", r.failure->text);
  write_channels(out, r);
  write_tokens_and_files(out, r);
  for (const StreamRecord& stream : r.streams)
    if (stream.state == StreamActivity::kBusy || stream.state == StreamActivity::kFailed)
      fmt::format_to(out, "  stream {}: {}\n", stream.name, enum_name(stream.state));
  for (const StackRecord* stack : busiest(r)) {
    fmt::format_to(out, "  thread {} {}\n", stack->thread, stack->name);
    for (size_t i = 0; i < std::min(kFrames, stack->symbols.size()); ++i)
      fmt::format_to(out, "    #{:<2} {}\n", i, stack->symbols[i]);
  }
  if (r.log.empty()) return;
  fmt::format_to(out, "  last lines of its log\n");
  for (size_t i = r.log.size() - std::min(kLogLines, r.log.size()); i < r.log.size(); ++i)
    fmt::format_to(out, "    {:>8} ago  {}\n", format_duration(r.log[i].seconds), r.log[i].text);
}

struct Row {
  std::string ranks, place, host, process, phase, thread, action, waits;
};

// `waits`: the table's text for what the rank waits for.
Row row_of(const RankRecord* r, const std::string& waits) {
  if (r == nullptr) return {.process = "no record"};
  return {.place = r->grid.place(r->world_rank),
          .host = r->host,
          .process = r->ended ? "ended" : std::string(enum_name(r->process_state)),
          .phase = fmt::format("{} {}", enum_name(r->phase), r->step),
          .thread = std::string(enum_name(r->host_state)),
          .action = action_text(*r),
          .waits = waits};
}

// Writes a table whose columns are as wide as their widest text, except the last one.
void write_rows(Out out, const std::vector<Row>& rows) {
  using Column = std::string Row::*;
  const std::array<std::pair<const char*, Column>, 8> columns{{{"rank", &Row::ranks},
                                                               {"place", &Row::place},
                                                               {"host", &Row::host},
                                                               {"process", &Row::process},
                                                               {"phase, step", &Row::phase},
                                                               {"training thread", &Row::thread},
                                                               {"action", &Row::action},
                                                               {"waits for", &Row::waits}}};
  std::array<size_t, columns.size()> widths{};
  for (size_t i = 0; i < columns.size(); ++i) {
    widths[i] = std::string_view(columns[i].first).size();
    for (const Row& row : rows) widths[i] = std::max(widths[i], (row.*columns[i].second).size());
  }
  const auto write = [&](const auto& text) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) line += fmt::format("{:<{}}  ", text(i), widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::format_to(out, "{}\n", line);
  };
  write([&](size_t i) { return std::string(columns[i].first); });
  for (const Row& row : rows) write([&](size_t i) { return row.*columns[i].second; });
}

void write_all_ranks(Out out, const WaitGraph& graph) {
  std::vector<Row> rows;
  for (int rank = 0; rank < graph.world_size(); ++rank) {
    rows.push_back(row_of(graph.record(rank), fmt::format("{}", fmt::join(graph.waits_text(rank), "; "))));
    rows.back().ranks = fmt::format("{}", rank);
  }
  write_rows(out, rows);
}

// Writes one row for all ranks that do the same, the smallest groups first. Each suspect has its own row.
void write_alike_ranks(Out out, const WaitGraph& graph, const HangVerdict& verdict) {
  std::set<int> suspects;
  for (const HangSuspect& suspect : verdict.suspects) suspects.insert(suspect.world_rank);
  std::map<std::string, std::vector<int>> alike;
  for (int rank = 0; rank < graph.world_size(); ++rank) {
    const Row row = row_of(graph.record(rank), graph.waits_key(rank));
    alike[fmt::format("{}|{}|{}|{}|{}|{}", suspects.contains(rank) ? rank : -1, row.process, row.phase, row.thread,
                      row.action, row.waits)]
        .push_back(rank);
  }
  std::vector<const std::vector<int>*> groups;
  for (const auto& entry : alike) groups.push_back(&entry.second);
  std::stable_sort(groups.begin(), groups.end(), [](const auto* a, const auto* b) { return a->size() < b->size(); });
  std::vector<Row> rows;
  for (const auto* ranks : groups) {
    if (rows.size() == kMostRows) break;
    Row row = row_of(graph.record(ranks->front()), graph.waits_key(ranks->front()));
    constexpr int kRuns = 3;
    row.ranks = ranks_text(*ranks, kRuns).substr(ranks->size() == 1 ? 5 : 6);
    if (ranks->size() > 1) {
      row.ranks = fmt::format("{} x: {}", ranks->size(), row.ranks);
      row.place = row.host = "";
    }
    rows.push_back(row);
  }
  write_rows(out, rows);
  if (groups.size() > rows.size()) fmt::format_to(out, "... and {} more groups\n", groups.size() - rows.size());
}

std::string trigger_text(const HangTrigger& trigger) {
  if (trigger.world_rank < 0) return "a signal or a command requested the dump; no deadline has expired";
  return fmt::format(
      "rank {} has made no progress {} for {}", trigger.world_rank,
      trigger.writer ? "in writing or reading its files" : fmt::format("in {}", enum_name(trigger.phase)),
      format_duration(trigger.seconds));
}

}  // namespace

std::string hang_report(std::span<const RankRecord> records, const HangTrigger& trigger, const HangVerdict& verdict) {
  const WaitGraph graph(records);
  std::string text;
  const Out out = std::back_inserter(text);
  fmt::format_to(out, "{}\n\nkind: {}\nreason for the dump: {}\n", verdict.headline, enum_name(verdict.kind),
                 trigger_text(trigger));
  if (!verdict.cycle.empty())
    fmt::format_to(out, "\nThese ranks wait for each other in a cycle; no node is at fault.\n");
  for (const HangEdge& edge : verdict.cycle) fmt::format_to(out, "  {}\n", edge.text);
  if (verdict.first_wait) fmt::format_to(out, "longest direct wait: {}\n", verdict.first_wait->text);
  for (size_t i = 0; i < std::min(kMostDetailed, verdict.suspects.size()); ++i) {
    const HangSuspect& suspect = verdict.suspects[i];
    fmt::format_to(out, "\n{}\n", suspect.text);
    if (suspect.world_rank >= 0 && suspect.world_rank < graph.world_size())
      if (const RankRecord* r = graph.record(suspect.world_rank)) write_rank(out, graph, *r);
  }
  if (verdict.suspects.size() > kMostDetailed) fmt::format_to(out, "\nFurther suspects\n");
  for (size_t i = kMostDetailed; i < verdict.suspects.size(); ++i)
    fmt::format_to(out, "  {}\n", verdict.suspects[i].text);

  std::vector<std::pair<int64_t, int>> failures;
  for (int rank = 0; rank < graph.world_size(); ++rank)
    if (const RankRecord* r = graph.record(rank); r != nullptr && r->failure)
      failures.emplace_back(r->failure->realtime, rank);
  std::sort(failures.begin(), failures.end());
  if (!failures.empty()) fmt::format_to(out, "\nFailures, earliest first\n");
  constexpr size_t kMostFailures = 16;
  for (size_t i = 0; i < std::min(kMostFailures, failures.size()); ++i) {
    const RankRecord& r = *graph.record(failures[i].second);
    fmt::format_to(out, "  +{:.3f} s  {}{}: {}\n", static_cast<double>(failures[i].first - failures[0].first) / 1e9,
                   to_string_place(r), r.failure->consequence ? ", as a consequence" : "", r.failure->text);
  }
  if (failures.size() > kMostFailures)
    fmt::format_to(out, "  ... and {} more failures\n", failures.size() - kMostFailures);

  if (graph.world_size() == 0) return text;
  fmt::format_to(out, "\nAll {} ranks\n", graph.world_size());
  if (graph.world_size() <= kMostRows)
    write_all_ranks(out, graph);
  else
    write_alike_ranks(out, graph, verdict);
  return text;
}

}  // namespace tri
