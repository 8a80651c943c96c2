#include "lib/doctor/doctor.h"

#include <algorithm>
#include <map>

#include "io/base/clock.h"
#include "lib/doctor/judge.h"

namespace tri {
namespace {

Nodes find_nodes(Job& job) {
  const int world = job.world_size();
  const auto machines = job.all_gather(job.machine()), hosts = job.all_gather(job.host());
  Nodes nodes;
  std::map<std::string, size_t> index;
  for (int rank = 0; rank < world; ++rank) {
    const auto [at, is_new] = index.emplace(machines[static_cast<size_t>(rank)], nodes.ranks.size());
    if (is_new) {
      nodes.ranks.emplace_back();
      nodes.hosts.push_back(hosts[static_cast<size_t>(rank)]);
    }
    nodes.ranks[at->second].push_back(rank);
    if (rank == job.world_rank()) {
      nodes.own = static_cast<int>(at->second);
      nodes.index = static_cast<int>(nodes.ranks[at->second].size()) - 1;
    }
  }
  return nodes;
}

// Returns a name of this rank's device that is unique on its node.
std::string own_part(Job& job, Device& device, const Nodes& nodes) {
  if (device.kind() == DeviceKind::kCpu) return fmt::format("rank {}", job.world_rank());
  return fmt::format("GPU {} ({})", nodes.index, device.bus_id());
}

// Memory for the transfers of full checks. The node's ranks can access it.
struct Buffers {
  Buffers(CheckContext& context, Device& device) : arena(device, 2 * context.copy_bytes + 2 * Arena::kAlignment) {
    const int64_t elements = context.copy_bytes / static_cast<int64_t>(dtype_bytes(Dtype::kF32));
    context.arena = &arena;
    context.source = arena.take("source", Dtype::kF32, {elements});
    context.landing = arena.take("landing", Dtype::kF32, {elements});
    if (context.nodes.own_ranks().size() < 2) return;
    auto opened = PeerArenas::open(context.nodes.own_ranks(), context.job, device, arena);
    if (opened)
      peers = std::move(opened).value();
    else
      context.no_peers = opened.error().message;
    context.peers = peers.get();
  }
  Arena arena;
  std::unique_ptr<PeerArenas> peers;
};

struct Gathered {
  std::vector<Measurement> measurements;
  std::map<int, std::string> skipped;  // [check]: why no rank measured it
};

// Runs the `wanted` checks (indices). Returns the measurements of all ranks on rank 0. Collective.
Gathered measure(const std::vector<Check>& checks, const std::vector<int>& wanted, CheckContext& context,
                 CheckDeadline& deadline) {
  std::map<int, CheckResult> own;
  for (const int i : wanted) {
    const Check& check = checks[static_cast<size_t>(i)];
    deadline.begin(check.rule.name);
    CheckResult& result = own[i] = check.run(context);
    for (Measurement& m : result.measurements) {
      m.rule = i;
      m.world_rank = context.job.world_rank();
      m.host = context.nodes.hosts[static_cast<size_t>(context.nodes.own)];
    }
    context.job.barrier();  // so that ranks do not disturb each other's measurements
  }
  Gathered all;
  const auto of_ranks = context.job.gather(own);
  for (const int i : wanted) {
    bool measured = false;
    std::string skipped;
    for (const auto& results : of_ranks) {
      const CheckResult& result = results.at(i);
      measured |= !result.measurements.empty();
      if (skipped.empty()) skipped = result.skipped;
      all.measurements.insert(all.measurements.end(), result.measurements.begin(), result.measurements.end());
    }
    if (!measured) all.skipped[i] = skipped.empty() ? "no node has what this check measures" : skipped;
  }
  return all;
}

// The checks with findings that another measurement may clear.
std::vector<int> to_repeat(const std::vector<Check>& checks, const std::vector<Finding>& findings) {
  std::vector<int> list;
  for (const Finding& finding : findings)
    if (checks[static_cast<size_t>(finding.rule)].rule.repeat == Repeat::kYes) list.push_back(finding.rule);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

}  // namespace

std::string CheckContext::end(int world_rank) const { return ends[static_cast<size_t>(world_rank)]; }

CheckDeadline::CheckDeadline(double seconds, Job& job) : seconds_(seconds), job_(job), thread_([this] { watch(); }) {}

CheckDeadline::~CheckDeadline() {
  {
    const MutexLock lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckDeadline::begin(const char* check) {
  const MutexLock lock(mutex_);
  check_ = check;
  until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
  changed_.notify_all();
}

void CheckDeadline::watch() {
  MutexLock lock(mutex_);
  while (!end_) {
    if (check_ == nullptr) {
      changed_.wait(mutex_);
    } else if (Clock::now() < until_) {
      changed_.wait_until(mutex_, until_);
    } else {
      const std::string what = fmt::format(
          "doctor: {} has not finished after {:g} s (--check-seconds), so the verdict is bad: storage, a device or "
          "another rank does not respond; run `trireme doctor` on each node alone to find out which",
          check_, seconds_);
      lock.unlock();
      job_.fail(what, kBadStatus);
    }
  }
}

DoctorReport run_doctor(const DoctorOptions& options, Job& job, Device& device, CheckDeadline& deadline) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Check>& checks = all_checks();
  const std::vector<Rule> rules = rules_of(checks);
  deadline.begin("the rendezvous of all ranks");
  const Nodes nodes = find_nodes(job);
  const auto stream = device.make_stream("doctor");
  CheckContext context{.job = job,
                       .device = device,
                       .nodes = nodes,
                       .storage_dir = options.storage_dir,
                       .part = own_part(job, device, nodes),
                       .copy_bytes = device.kind() == DeviceKind::kCuda ? int64_t{256} << 20 : int64_t{4} << 20,
                       .stream = *stream};
  context.ends = job.all_gather(nodes.hosts[static_cast<size_t>(nodes.own)] + ": " + context.part);
  std::unique_ptr<Buffers> buffers;
  if (options.depth == Depth::kFull) {
    deadline.begin("the allocation of memory for transfers");
    buffers = std::make_unique<Buffers>(context, device);
  }

  std::vector<int> wanted;
  for (size_t i = 0; i < checks.size(); ++i) {
    const bool selected = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                            checks[i].rule.name) != options.only.end();
    if (selected && (options.depth == Depth::kFull || checks[i].depth == Depth::kQuick))
      wanted.push_back(static_cast<int>(i));
  }
  Gathered all = measure(checks, wanted, context, deadline);
  std::vector<Finding> findings = judge(rules, device.kind(), all.measurements);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const std::vector<int> again = job.broadcast(to_repeat(checks, findings));
    if (again.empty()) break;
    const Gathered more = measure(checks, again, context, deadline);
    keep_better(rules, all.measurements, more.measurements);
    findings = judge(rules, device.kind(), all.measurements);
  }

  DoctorReport report{.verdict = job.broadcast(worst(findings)), .depth = options.depth, .device = device.kind()};
  report.hosts = nodes.hosts;
  report.ranks = job.world_size();
  for (const int i : wanted) {
    // Rows are numbered by the selected checks; quick and full ones may be in any order.
    const auto row = static_cast<int>(report.checks.size());
    report.checks.push_back({.rule = rules[static_cast<size_t>(i)], .skipped = all.skipped[i]});
    for (Measurement m : all.measurements)
      if (m.rule == i) {
        m.rule = row;
        report.measurements.push_back(std::move(m));
      }
    for (const Finding& finding : findings)
      if (finding.rule == i) report.checks.back().verdict = std::max(report.checks.back().verdict, finding.verdict);
  }
  for (Finding& finding : findings)
    finding.rule = static_cast<int>(std::find(wanted.begin(), wanted.end(), finding.rule) - wanted.begin());
  report.findings = std::move(findings);
  report.seconds = seconds_since(begin);
  return report;
}

int exit_status(Verdict verdict) {
  if (verdict == Verdict::kHealthy) return 0;
  return static_cast<int>(verdict == Verdict::kSuspect ? kSuspectStatus : kBadStatus);
}

}  // namespace tri
