#include "lib/fault/hang_locator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <tuple>

#include "lib/fault/rank_text.h"
#include "lib/fault/wait_graph.h"

namespace tri {
namespace {

constexpr size_t kMostSuspects = 64;  // the number of bits of an element of `reached`
constexpr int kInnermost = 3;         // number of frames by which stacks are compared

// How certain it is that a candidate blocks the job; lower values are more certain.
enum Certainty { kOwnFailure, kGone, kStopped, kEchoedFailure, kSeenFromCounters, kNotKnown };

// A node that blocks all others: it is in a component of the graph without an edge to another component.
struct Candidate {
  int component = 0, node = 0;
  HangKind kind = HangKind::kUnknown;
  Certainty certainty = kNotKnown;
  std::vector<int> ranks;  // ranks to report, ascending
  int num_waiting = 0;
  bool holds_trigger = false;  // the rank whose deadline has expired waits for it
  int num_alike = 0;           // ranks at the same place in the program; in a tie, the rarer place is more suspect
  double silent = 0;           // seconds
};

std::string place_in_program(const RankRecord& record) {
  std::string text = fmt::format("{}/{}", static_cast<int>(record.phase), static_cast<int>(record.host_state));
  for (const StackRecord& stack : record.stacks)
    for (size_t i = 0; i < std::min<size_t>(kInnermost, stack.symbols.size()); ++i) text += "/" + stack.symbols[i];
  return text;
}

class Locator {
 public:
  Locator(const WaitGraph& graph, const HangTrigger& trigger)
      : graph_(graph), trigger_(trigger), components_(graph.edges()) {}

  HangVerdict verdict();

 private:
  void find_candidates();
  bool is_held_host(int node) const;
  std::optional<int> blamed_in(std::span<const int> nodes) const;
  std::optional<Candidate> candidate(int component) const;
  void judge(Candidate& candidate) const;
  double silent_at(int node) const;
  void count_waiting();
  void count_alike();
  void sort_candidates();
  void keep_root_causes();
  bool is_healthy(const Candidate& candidate) const;

  HangVerdict healthy_verdict() const;
  HangVerdict cycle_verdict(const Candidate& cycle) const;
  HangVerdict transfer_verdict(const Candidate& transfer) const;
  std::vector<HangEdge> shortest_cycle(const Candidate& cycle) const;
  std::optional<HangEdge> first_wait(const Candidate& candidate) const;
  std::string suspect_text(const Candidate& candidate) const;
  std::string waiting_text(const HangVerdict& verdict, const char* object) const;

  const WaitGraph& graph_;
  const HangTrigger& trigger_;
  const StrongComponents components_;
  int num_held_hosts_ = 0;
  std::vector<Candidate> candidates_;
};

HangVerdict Locator::verdict() {
  find_candidates();
  count_waiting();
  count_alike();
  sort_candidates();
  keep_root_causes();
  if (candidates_.empty()) return healthy_verdict();
  const Candidate& first = candidates_.front();
  if (first.kind == HangKind::kCycle) return cycle_verdict(first);
  if (graph_.rank_of(first.node) < 0) return transfer_verdict(first);

  HangVerdict verdict{.kind = first.kind, .num_waiting = first.num_waiting, .first_wait = first_wait(first)};
  for (const Candidate& c : candidates_) verdict.suspects.push_back({c.ranks.front(), c.kind, suspect_text(c)});
  verdict.headline = verdict.suspects.front().text + waiting_text(verdict, "it");
  std::vector<int> others;
  for (size_t i = 1; i < candidates_.size(); ++i) others.push_back(candidates_[i].ranks.front());
  std::sort(others.begin(), others.end());
  if (!others.empty()) verdict.headline += fmt::format("; also {}", ranks_text(others));
  return verdict;
}

void Locator::find_candidates() {
  for (int rank = 0; rank < graph_.world_size(); ++rank)
    num_held_hosts_ += is_held_host(graph_.node(rank, WaitGraph::kHost)) ? 1 : 0;
  for (int c = 0; c < components_.size(); ++c)
    if (auto found = candidate(c)) candidates_.push_back(std::move(*found));
  if (candidates_.size() <= kMostSuspects) return;
  // There are too many to count the waiting ranks of each: take the certain ones first, then those with a waiting rank.
  const auto is_awaited = [&](const Candidate& c) {
    const auto waiting = graph_.reversed().of(c.node);
    return std::any_of(waiting.begin(), waiting.end(),
                       [&](int node) { return graph_.rank_of(node) != c.ranks.front(); });
  };
  const auto order = [&](const Candidate& c) { return std::tuple(c.certainty, !is_awaited(c), -c.silent); };
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [&](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
  candidates_.resize(kMostSuspects);
}

// Whether the node is a host thread that runs while its own streams wait for other ranks.
bool Locator::is_held_host(int node) const {
  return graph_.rank_of(node) >= 0 && graph_.activity_of(node) == WaitGraph::kHost && graph_.sink(node) &&
         !graph_.edges().of(node).empty();
}

// Returns the node of a component that may be working rather than waiting. A host whose streams wait is usually blocked
// in a launch by a full queue, and then other hosts are too; if it is the only such host, it may be working.
std::optional<int> Locator::blamed_in(std::span<const int> nodes) const {
  const auto order = [&](int node) {
    return std::tuple(is_held_host(node), graph_.rank_of(node) < 0, -silent_at(node), node);
  };
  std::optional<int> blamed;
  for (const int node : nodes)
    if (graph_.sink(node) && (num_held_hosts_ <= 1 || !is_held_host(node)) && (!blamed || order(node) < order(*blamed)))
      blamed = node;
  return blamed;
}

std::optional<Candidate> Locator::candidate(int component) const {
  const auto nodes = components_.nodes_of(component);
  for (const int node : nodes)
    for (const int next : graph_.edges().of(node))
      if (components_.of[static_cast<size_t>(next)] != component) return std::nullopt;
  const std::optional<int> blamed = blamed_in(nodes);
  Candidate c{.component = component, .node = blamed.value_or(nodes.front())};
  if (blamed) {
    c.kind = *graph_.sink(c.node);
    c.ranks = {graph_.rank_of(c.node)};
    if (c.ranks.front() < 0) c.ranks = graph_.rendezvous_members(c.node);
  } else {
    for (const int node : nodes)
      if (graph_.rank_of(node) >= 0) c.ranks.push_back(graph_.rank_of(node));
    std::sort(c.ranks.begin(), c.ranks.end());
    c.ranks.erase(std::unique(c.ranks.begin(), c.ranks.end()), c.ranks.end());
    if (c.ranks.empty() || (nodes.size() == 1 && graph_.reversed().of(c.node).empty())) return std::nullopt;
    if (c.ranks.size() > 1) c.kind = HangKind::kCycle;
  }
  judge(c);
  return c;
}

double Locator::silent_at(int node) const {
  const int rank = graph_.rank_of(node);
  if (rank < 0 || graph_.record(rank) == nullptr) return 0;
  const RankRecord& r = *graph_.record(rank);
  switch (graph_.activity_of(node)) {
    case WaitGraph::kReader:
      return r.loaders[0].seconds;
    case WaitGraph::kValidationReader:
      return r.loaders[1].seconds;
    case WaitGraph::kWriter:
      return r.writer.seconds;
    default:
      return silent_seconds(r);
  }
}

void Locator::judge(Candidate& c) const {
  c.certainty = c.kind == HangKind::kUnknown ? kNotKnown : kSeenFromCounters;
  const int rank = graph_.rank_of(c.node);
  if (rank >= 0 && c.kind != HangKind::kCycle) {
    c.silent = silent_at(c.node);
  } else {
    bool is_first = true;
    for (const int member : rank < 0 && c.kind != HangKind::kCycle ? graph_.rendezvous_waiting(c.node) : c.ranks) {
      if (graph_.record(member) == nullptr) continue;
      const double silent = silent_seconds(*graph_.record(member));
      c.silent = is_first ? silent : std::min(c.silent, silent);
      is_first = false;
    }
  }
  if (rank < 0 || graph_.activity_of(c.node) != WaitGraph::kHost || !graph_.lost(rank)) return;
  const RankRecord* r = graph_.record(rank);
  if (c.kind == HangKind::kFailed)  // a transfer does not always recognise that another rank has ended
    c.certainty = r->failure->code == static_cast<int>(ExitCode::kComm) ? kEchoedFailure : kOwnFailure;
  else if (c.kind == HangKind::kProcessGone)
    c.certainty = r != nullptr && r->failure && r->failure->consequence ? kNotKnown : kGone;
  else
    c.certainty = kStopped;
}

// Counts the ranks that wait for each candidate, by one pass over the graph from the candidates upwards.
void Locator::count_waiting() {
  std::vector<uint64_t> reached(static_cast<size_t>(components_.size()));
  for (size_t i = 0; i < candidates_.size(); ++i)
    reached[static_cast<size_t>(candidates_[i].component)] = uint64_t{1} << i;
  for (int c = 0; c < components_.size(); ++c)
    for (const int node : components_.nodes_of(c))
      for (const int next : graph_.edges().of(node))
        reached[static_cast<size_t>(c)] |= reached[static_cast<size_t>(components_.of[static_cast<size_t>(next)])];
  for (int rank = 0; rank < graph_.world_size(); ++rank) {
    uint64_t waits_for = 0;
    for (const auto activity : {WaitGraph::kHost, WaitGraph::kDevice})
      waits_for |= reached[static_cast<size_t>(components_.of[static_cast<size_t>(graph_.node(rank, activity))])];
    for (; waits_for != 0; waits_for &= waits_for - 1) {
      Candidate& c = candidates_[static_cast<size_t>(std::countr_zero(waits_for))];
      if (std::binary_search(c.ranks.begin(), c.ranks.end(), rank)) continue;
      c.holds_trigger |= rank == trigger_.world_rank;
      ++c.num_waiting;
    }
  }
}

void Locator::count_alike() {
  if (candidates_.size() < 2) return;
  std::map<std::string, int> places;
  for (int rank = 0; rank < graph_.world_size(); ++rank)
    if (graph_.record(rank) != nullptr) ++places[place_in_program(*graph_.record(rank))];
  for (Candidate& c : candidates_) {
    const bool trains = graph_.rank_of(c.node) >= 0 && (graph_.activity_of(c.node) == WaitGraph::kHost ||
                                                        graph_.activity_of(c.node) == WaitGraph::kDevice);
    const RankRecord* r = graph_.record(c.ranks.front());
    if (trains && r != nullptr && !graph_.lost(c.ranks.front())) c.num_alike = places[place_in_program(*r)];
  }
}

void Locator::sort_candidates() {
  const auto failed_at = [&](const Candidate& c) {
    const RankRecord* r = graph_.record(c.ranks.front());
    return c.kind == HangKind::kFailed ? r->failure->realtime : 0;
  };
  // If the deadline of a writer has expired, only writers matter: the training runs concurrently with them.
  const auto off_topic = [&](const Candidate& c) {
    if (!trigger_.writer || c.certainty < kSeenFromCounters) return 0;
    if (graph_.rank_of(c.node) < 0 || graph_.activity_of(c.node) != WaitGraph::kWriter) return 2;
    return c.ranks.front() == trigger_.world_rank ? 0 : 1;
  };
  const auto order = [&](const Candidate& c) {
    return std::tuple(c.certainty, off_topic(c), failed_at(c), -c.num_waiting, !c.holds_trigger, c.num_alike,
                      c.ranks.front() != trigger_.world_rank, -c.silent, c.ranks.front());
  };
  std::sort(candidates_.begin(), candidates_.end(),
            [&](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
}

// Whether the candidate has made progress too recently to be stuck.
bool Locator::is_healthy(const Candidate& c) const {
  constexpr double kRequestedSeconds = 10, kShareOfDeadline = 0.25;
  if (trigger_.world_rank >= 0) return c.silent < kShareOfDeadline * trigger_.seconds;
  double step = 0;
  for (const int rank : c.ranks)
    if (graph_.record(rank) != nullptr) step = std::max(step, graph_.record(rank)->step_seconds);
  return c.silent < std::max(kRequestedSeconds, 2 * step);
}

// Keeps the candidates that are about as certain as the first one.
void Locator::keep_root_causes() {
  const bool is_requested = trigger_.world_rank < 0;
  const auto is_innocent = [&](const Candidate& c) {
    if (c.certainty < kSeenFromCounters) return false;
    if (c.certainty == kNotKnown && c.num_waiting == 0) return true;
    return is_requested && is_healthy(c);
  };
  std::erase_if(candidates_, is_innocent);
  // After a deadline some rank is at fault, but not necessarily one that makes progress and has no waiting rank.
  const auto proceeds = [&](const Candidate& c) {
    return c.certainty >= kSeenFromCounters && c.num_waiting == 0 && is_healthy(c);
  };
  if (!std::all_of(candidates_.begin(), candidates_.end(), proceeds)) std::erase_if(candidates_, proceeds);
  if (candidates_.empty()) return;
  const Candidate first = candidates_.front();
  const bool is_certain = first.certainty == kGone || first.certainty == kStopped;
  const bool is_alone = first.certainty == kOwnFailure || first.certainty == kEchoedFailure ||
                        first.kind == HangKind::kCycle || graph_.rank_of(first.node) < 0;
  if (is_alone) return candidates_.resize(1);
  std::erase_if(candidates_, [&](const Candidate& c) {
    if (is_certain) return c.certainty != kGone && c.certainty != kStopped;
    const bool as_odd = first.num_waiting > 0 || (c.num_alike == first.num_alike && c.silent >= first.silent / 2);
    return c.certainty != first.certainty || c.kind != first.kind || graph_.rank_of(c.node) < 0 ||
           2 * c.num_waiting < first.num_waiting || !as_odd;
  });
  // Name each rank once, even if several of its activities are stuck.
  std::vector<int> named;
  std::erase_if(candidates_, [&](const Candidate& c) {
    if (std::find(named.begin(), named.end(), c.ranks.front()) != named.end()) return true;
    named.push_back(c.ranks.front());
    return false;
  });
}

HangVerdict Locator::healthy_verdict() const {
  double silent = 0;
  for (int rank = 0; rank < graph_.world_size(); ++rank)
    if (graph_.record(rank) != nullptr) silent = std::max(silent, silent_seconds(*graph_.record(rank)));
  HangVerdict verdict;
  verdict.headline =
      trigger_.world_rank >= 0
          ? fmt::format("no suspect was found: none of the {} ranks is seen to block the others", graph_.world_size())
          : fmt::format("no hang was found: all {} ranks make progress, the last one {:.1f} s ago", graph_.world_size(),
                        silent);
  return verdict;
}

// Returns the shortest cycle of edges of the component through its first rank.
std::vector<HangEdge> Locator::shortest_cycle(const Candidate& cycle) const {
  const auto nodes = components_.nodes_of(cycle.component);
  int start = nodes.front();
  for (const int node : nodes)
    if (graph_.rank_of(node) == cycle.ranks.front()) start = node;
  std::map<int, int> from;  // by node
  std::vector<int> queue{start};
  for (size_t next = 0; next < queue.size() && !from.contains(start); ++next)
    for (const int to : graph_.edges().of(queue[next])) {
      if (components_.of[static_cast<size_t>(to)] != cycle.component || !from.try_emplace(to, queue[next]).second)
        continue;
      if (to == start) break;
      queue.push_back(to);
    }
  std::vector<int> ranks;
  for (int node = start; from.contains(node) && (ranks.empty() || node != start);) {
    if (const int rank = graph_.rank_of(node); rank >= 0 && (ranks.empty() || ranks.back() != rank))
      ranks.push_back(rank);
    node = from[node];
  }
  if (ranks.size() > 1 && ranks.back() == ranks.front()) ranks.pop_back();
  std::reverse(ranks.begin() + 1, ranks.end());
  std::vector<HangEdge> edges;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int to = ranks[(i + 1) % ranks.size()];
    edges.push_back({ranks[i], to, graph_.edge_text(ranks[i], to)});
  }
  return edges;
}

HangVerdict Locator::cycle_verdict(const Candidate& cycle) const {
  HangVerdict verdict{.kind = HangKind::kCycle, .cycle = shortest_cycle(cycle), .num_waiting = cycle.num_waiting};
  std::vector<int> ranks;
  for (const HangEdge& edge : verdict.cycle) ranks.push_back(edge.from);
  std::sort(ranks.begin(), ranks.end());
  for (const int rank : ranks)
    verdict.suspects.push_back(
        {rank, HangKind::kCycle, fmt::format("{} in {}", graph_.place(rank), doing_text(*graph_.record(rank)))});
  // Ranks of the component outside the reported cycle wait as well.
  verdict.num_waiting += static_cast<int>(cycle.ranks.size() - ranks.size());
  verdict.headline = fmt::format("software fault: {} wait for each other in a cycle: {}", ranks_text(ranks),
                                 verdict.cycle.front().text);
  if (verdict.cycle.size() > 1)
    verdict.headline +=
        fmt::format(", {}{}", verdict.cycle.size() > 2 ? "... and " : "and ", verdict.cycle.back().text);
  verdict.headline += waiting_text(verdict, "them");
  return verdict;
}

HangVerdict Locator::transfer_verdict(const Candidate& transfer) const {
  HangVerdict verdict{.kind = transfer.kind, .num_waiting = transfer.num_waiting};
  const std::string what = graph_.rendezvous_text(transfer.node);
  std::string why = "does not complete although all of its members have started it";
  if (const auto mismatch = graph_.rendezvous_mismatch(transfer.node)) {
    verdict.kind = HangKind::kCycle;
    verdict.cycle = {*mismatch};
    why = fmt::format("differs between its members: {}", mismatch->text);
  }
  // List the waiting ranks first; the transfer may be stuck on either side.
  const std::vector<int> waiting = graph_.rendezvous_waiting(transfer.node);
  std::vector<int> ranks = waiting;
  std::set_difference(transfer.ranks.begin(), transfer.ranks.end(), waiting.begin(), waiting.end(),
                      std::back_inserter(ranks));
  if (ranks.size() > kMostSuspects) ranks.resize(kMostSuspects);
  for (const int rank : ranks)
    verdict.suspects.push_back(
        {rank, verdict.kind,
         fmt::format("{}, which {} {}", graph_.place(rank),
                     std::binary_search(waiting.begin(), waiting.end(), rank) ? "waits for" : "has completed", what)});
  verdict.headline =
      fmt::format("{}: {} {}; its members are {}", enum_name(verdict.kind), what, why, ranks_text(transfer.ranks));
  if (ranks.size() == 2)
    verdict.headline += fmt::format(": {}, and {}", graph_.place(ranks[0]), graph_.place(ranks[1]));
  verdict.headline += waiting_text(verdict, "them");
  return verdict;
}

// Finds the ranks that wait for the candidate directly, through rendezvous and its own activities, and returns the wait
// of the one that has been silent for longest.
std::optional<HangEdge> Locator::first_wait(const Candidate& c) const {
  const int suspect = c.ranks.front();
  std::vector<int> queue{c.node};
  std::vector<bool> seen(static_cast<size_t>(graph_.num_nodes()));
  seen[static_cast<size_t>(c.node)] = true;
  int first = -1;
  const auto order = [&](int rank) {
    return std::tuple(-silent_seconds(*graph_.record(rank)), std::abs(rank - suspect), rank);
  };
  for (size_t next = 0; next < queue.size(); ++next)
    for (const int from : graph_.reversed().of(queue[next])) {
      if (seen[static_cast<size_t>(from)]) continue;
      seen[static_cast<size_t>(from)] = true;
      const int rank = graph_.rank_of(from);
      if (rank < 0 || rank == suspect)
        queue.push_back(from);
      else if (graph_.record(rank) != nullptr && (first < 0 || order(rank) < order(first)))
        first = rank;
    }
  if (first < 0) return std::nullopt;
  return HangEdge{first, suspect, graph_.edge_text(first, suspect)};
}

std::string Locator::waiting_text(const HangVerdict& verdict, const char* object) const {
  if (verdict.num_waiting == 0) return "";
  std::string text = verdict.num_waiting == 1 ? fmt::format("; 1 rank waits for {}", object)
                                              : fmt::format("; {} ranks wait for {}", verdict.num_waiting, object);
  if (!verdict.first_wait) return text;
  text += fmt::format("; the first is {}", graph_.short_place(verdict.first_wait->from));
  const std::string awaited = graph_.awaited_text(verdict.first_wait->from, verdict.first_wait->to);
  return awaited.empty() ? text : fmt::format("{} ({})", text, awaited);
}

std::string Locator::suspect_text(const Candidate& c) const {
  const int rank = c.ranks.front();
  const std::string place = graph_.place(rank);
  const RankRecord* r = graph_.record(rank);
  if (r == nullptr) return place + " is gone: it left no flight record";
  const std::string doing = doing_text(*r);
  switch (c.kind) {
    case HangKind::kProcessGone:
      return r->failure ? fmt::format("{} is gone: it failed in {}: {}", place, doing, r->failure->text)
                        : fmt::format("{} is gone: its process ended without an error message in {}", place, doing);
    case HangKind::kProcessStopped:
      return fmt::format("{} is stopped by a signal in {}", place, doing);
    case HangKind::kFailed:
      return fmt::format("{} failed in {}: {}", place, doing, r->failure->text);
    case HangKind::kHostBusy:
      return fmt::format("{} has been busy in host code for {:.0f} s, in {}", place, c.silent, doing);
    case HangKind::kDeviceBusy:
      return fmt::format("{}: its device has not finished its computation for {:.0f} s, in {}", place, c.silent, doing);
    case HangKind::kTransfer:
      return fmt::format("{}: its data has waited to be sent for {:.0f} s, in {}", place, c.silent, doing);
    case HangKind::kDataReader:
      if (const auto activity = graph_.activity_of(c.node); activity != WaitGraph::kHost) {
        const bool trains = activity == WaitGraph::kReader;
        return fmt::format("{}: its reader of {} tokens has made no progress after batch {} for {:.0f} s", place,
                           trains ? "training" : "validation", r->loaders[trains ? 0 : 1].published, c.silent);
      }
      return fmt::format("{}: it does not consume the tokens that were read for it, in {}", place, doing);
    case HangKind::kStorage:
      if (graph_.activity_of(c.node) == WaitGraph::kWriter)
        return fmt::format("{}: its {} and has made no progress for {:.0f} s", place, writer_text(r->writer), c.silent);
      return fmt::format("{} has been in a file system call for {:.0f} s, in {}", place, c.silent, doing);
    case HangKind::kCycle:
    case HangKind::kUnknown:
      break;
  }
  return r->ended ? fmt::format("{} has ended without an error", place)
                  : fmt::format("{} {} in {}, and its record does not say which rank it waits for", place,
                                enum_name(r->host_state), doing);
}

// Whether a rank's use of storage makes progress while that of another rank does not.
enum class StorageUse { kNone, kProceeds, kStalls };

// Compares writers or readers of checkpoints. Only rank 0 appends lines and publishes, so these cannot be compared.
StorageUse writer_use(const RankRecord& stuck, const RankRecord& other) {
  constexpr double kShare = 0.25;  // of the stuck rank's time without progress
  const WriterRecord &own = stuck.writer, &w = other.writer;
  const bool comparable =
      own.state == WriterState::kCopies || own.state == WriterState::kWrites || own.state == WriterState::kReads;
  if (w.state != WriterState::kIdle && w.seconds >= kShare * own.seconds) return StorageUse::kStalls;
  if (!comparable || w.state == WriterState::kAppends || w.progress == 0 || w.step < own.step) return StorageUse::kNone;
  return StorageUse::kProceeds;
}

// Compares readers of tokens.
StorageUse reader_use(const RankRecord& stuck, const RankRecord& other, size_t loader) {
  constexpr double kShare = 0.25;
  const LoaderRecord &own = stuck.loaders[loader], &r = other.loaders[loader];
  if (r.reader_state == ReaderState::kNone) return StorageUse::kNone;
  if (r.reader_state == ReaderState::kReads && r.seconds >= kShare * own.seconds) return StorageUse::kStalls;
  return comes_before(r.published, own.published) ? StorageUse::kNone : StorageUse::kProceeds;
}

bool waits_for_storage(HangKind kind) { return kind == HangKind::kStorage || kind == HangKind::kDataReader; }

// Whether ranks of all other nodes make progress with the storage that `stuck` waits for.
bool others_proceed(std::span<const RankRecord> records, const RankRecord& stuck, HangKind kind) {
  std::map<std::string, bool> proceeds;  // [host]
  const auto reading = std::find_if(stuck.loaders.begin(), stuck.loaders.end(), [](const LoaderRecord& loader) {
    return loader.reader_state == ReaderState::kReads;
  });
  // If a rank's own thread does not consume tokens that have been read, it does not wait for storage.
  const bool is_reader = kind == HangKind::kDataReader;
  const bool takes_none = is_reader && reading == stuck.loaders.end();
  for (const RankRecord& other : records) {
    if (other.host == stuck.host) continue;
    const StorageUse use = takes_none  ? StorageUse::kProceeds
                           : is_reader ? reader_use(stuck, other, static_cast<size_t>(reading - stuck.loaders.begin()))
                                       : writer_use(stuck, other);
    if (use == StorageUse::kStalls) return false;
    proceeds[other.host] |= use == StorageUse::kProceeds;
  }
  return !proceeds.empty() &&
         std::all_of(proceeds.begin(), proceeds.end(), [](const auto& host) { return host.second; });
}

}  // namespace

std::vector<std::string> suspect_hosts(std::span<const RankRecord> records, const HangVerdict& verdict) {
  std::vector<std::string> hosts;
  if (verdict.kind == HangKind::kCycle || verdict.kind == HangKind::kUnknown) return hosts;
  for (const HangSuspect& suspect : verdict.suspects) {
    const auto of = std::find_if(records.begin(), records.end(),
                                 [&](const RankRecord& r) { return r.world_rank == suspect.world_rank; });
    if (of == records.end() || of->host.empty()) continue;
    if (waits_for_storage(suspect.kind) && !others_proceed(records, *of, suspect.kind)) return {};
    if (std::find(hosts.begin(), hosts.end(), of->host) == hosts.end()) hosts.push_back(of->host);
  }
  return waits_for_storage(verdict.kind) && hosts.size() > 1 ? std::vector<std::string>() : hosts;
}

HangVerdict locate_hang(std::span<const RankRecord> records, const HangTrigger& trigger) {
  const WaitGraph graph(records);
  if (graph.world_size() == 0) return {.headline = "the dump holds no flight records"};
  if (graph.is_suspended())
    return {.kind = HangKind::kProcessStopped,
            .headline = fmt::format("the job is suspended: all of its {} processes are stopped", graph.world_size())};
  return Locator(graph, trigger).verdict();
}

}  // namespace tri
