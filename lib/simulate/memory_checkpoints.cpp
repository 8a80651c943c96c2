#include "lib/simulate/memory_checkpoints.h"

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/random.h"
#include "lib/simulate/collectives.h"
#include "lib/simulate/gemm_times.h"

namespace tri {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int64_t kStops = 200'000;
constexpr int kParts = 50;  // of a run, whose scatter is the standard error

// Returns the multiples of `every` in (first, last]; 0 for `every` 0.
int64_t multiples(int64_t first, int64_t last, int64_t every) { return every == 0 ? 0 : last / every - first / every; }

// The training between a restart and the next stop.
class Segment {
 public:
  Segment(const FaultyJob& job, int64_t first, double seconds) : job_(job), first_(first), seconds_(seconds) {
    int64_t low = 0, high = static_cast<int64_t>(seconds / job.step_s) + 1;  // seconds_until(first + high) > seconds
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (seconds_until(first_ + middle) <= seconds_ ? low : high) = middle;
    }
    last_ = first_ + low;
  }

  // The steps that were completed, and the part of the next one.
  int64_t last() const { return last_; }
  double progress() const {
    return static_cast<double>(last_) + std::min(1.0, (seconds_ - seconds_until(last_)) / job_.step_s);
  }

  // Returns the newest multiple of `every` that counted before the stop, or -1 if none did.
  int64_t newest(int64_t every, double complete_s) const {
    if (every == 0) return -1;
    for (int64_t step = last_ / every * every; step > first_; step -= every)
      if (seconds_until(step) + complete_s <= seconds_) return step;
    return -1;
  }

 private:
  double seconds_until(int64_t step) const {
    return static_cast<double>(step - first_) * job_.step_s +
           static_cast<double>(multiples(first_, step, job_.storage_every)) * job_.storage_stall_s +
           static_cast<double>(multiples(first_, step, job_.memory_every)) * job_.memory_stall_s;
  }

  const FaultyJob& job_;
  int64_t first_;
  double seconds_;
  int64_t last_;
};

// Bytes of the state of the stage with most, on each of the ranks among which its writers take turns.
double snapshot_bytes(const Workload& w) {
  const Layers layers = w.layers();
  double most = 0;
  for (int stage = 0; stage < w.pp; ++stage) {
    const Elements elements = elements_of_stage(w, layers, stage), matrices = matrices_of_stage(w, layers, stage);
    double bytes = 0;
    for (const ReducedOver over : kReducedOver)
      bytes += ((elements[over] - matrices[over]) * (4 + w.optimizer_bytes) + matrices[over] * (4 + w.matrix_bytes)) /
               w.reducing(over);
    most = std::max(most, bytes);
  }
  return most;
}

double send_rate(const Cluster& c) { return rank_gb_per_s(c) * c.network.share * 1e9; }

nlohmann::ordered_json restarts_json(const FaultStatistics& f) {
  return {{"own_memory", f.restarts[0]}, {"buddy_memory", f.restarts[1]}, {"storage", f.restarts[2]}};
}

}  // namespace

SnapshotPrice snapshot_price(const Workload& w, const Cluster& c, double step_s) {
  TRI_REQUIRE(step_s > 0, "snapshots of steps of {} s", step_s);
  SnapshotPrice price{.bytes = snapshot_bytes(w), .fixed_s = c.faults.snapshot_s};
  price.copy_s = price.bytes / (c.node.host_gb_per_s * 1e9);
  price.send_s = price.bytes / send_rate(c);
  // The next update waits for the copy.
  const double hidden = std::min(c.faults.copy_hidden * price.copy_s, step_s);
  price.exposed_copy_s = price.copy_s - hidden;
  price.slowdown_s = hidden * c.node.host_gb_per_s * 1e9 / memory_bytes_per_second(c);
  // The buddy receives only while the network is idle, unless that does not suffice in the next step, whose end waits.
  const TransferLoads loads = transfer_loads(w, c, RingTimes(c));
  const double idle = std::max(0.0, step_s - loads.dp - loads.pp_direction);
  price.exposed_send_s = std::max(0.0, price.send_s - idle);
  const double sending =
      price.exposed_send_s > 0 ? step_s + price.exposed_send_s : price.send_s * step_s / std::max(idle, 1e-12);
  price.complete_s = price.copy_s + sending + price.fixed_s;
  return price;
}

FaultStatistics simulate_faults(const FaultyJob& job, int64_t stops, uint64_t seed) {
  TRI_REQUIRE(stops >= kParts && job.mtbf_s > 0 && job.step_s > 0 && job.storage_every >= 1, "{} stops", stops);
  uint64_t counter = 0;
  const auto uniform = [&] { return random_uniform(seed, counter++); };
  const auto interval = [&] { return -job.mtbf_s * std::log1p(-uniform()); };
  const auto kind = [&] {
    const double node = uniform(), buddies = uniform();
    return node < job.process_share      ? RestartFrom::kOwnMemory
           : buddies < job.buddies_share ? RestartFrom::kStorage
                                         : RestartFrom::kBuddyMemory;
  };
  FaultStatistics result;
  int64_t position = 0, stored = 0, part_position = 0;
  bool in_memory = false;  // the state of `position`
  double elapsed = 0, part_elapsed = 0, squares = 0;
  std::array<double, kParts> shares{};
  for (int64_t stop = 0, part = 0; stop < stops; ++stop) {
    const double up = interval();
    const Segment segment(job, position, up);
    stored = std::max(stored, segment.newest(job.storage_every, job.storage_complete_s));
    int64_t held = segment.newest(job.memory_every, job.memory_complete_s);
    if (held < 0 && in_memory) held = position;
    RestartFrom lost = kind();
    const auto source = [&] { return held < stored ? RestartFrom::kStorage : lost; };
    const auto needed = [&] { return job.recovery_s[static_cast<size_t>(source())]; };
    double recovery = 0, next = interval();
    for (; next < needed(); next = interval()) {  // the recovery begins again, from what is left
      recovery += next;
      lost = std::max(lost, kind());
    }
    recovery += needed();
    position = source() == RestartFrom::kStorage ? stored : held;
    in_memory = source() != RestartFrom::kStorage;
    result.lost_steps += segment.progress() - static_cast<double>(position);
    result.recovery_s += recovery;
    ++result.restarts[static_cast<size_t>(source())];
    elapsed += up + recovery;
    if ((stop + 1) * kParts / stops > part) {
      shares[static_cast<size_t>(part++)] =
          static_cast<double>(position - part_position) * job.step_s / (elapsed - part_elapsed);
      part_position = position;
      part_elapsed = elapsed;
    }
  }
  result.effective = static_cast<double>(position) * job.step_s / elapsed;
  for (const double share : shares) squares += (share - result.effective) * (share - result.effective);
  result.standard_error = std::sqrt(squares / (kParts - 1) / kParts);
  result.lost_steps /= static_cast<double>(stops);
  result.recovery_s /= static_cast<double>(stops);
  return result;
}

FaultyJob faulty_job(const Workload& w, const Cluster& c, double step_s, int64_t memory_every) {
  const double write_s = checkpoint_bytes(w) / (c.network.storage_gb_per_s * 1e9);
  const Goodput g = goodput(c, w.ranks(), write_s);
  FaultyJob job{.mtbf_s = g.rates.mtbf_s,
                .step_s = step_s,
                .process_share = c.faults.process_share,
                .buddies_share = c.faults.buddies_share,
                .storage_every = std::max<int64_t>(1, std::llround(g.interval_s / step_s)),
                .storage_stall_s = g.rates.stall_s,
                .storage_complete_s = write_s,
                .memory_every = memory_every};
  const double from_storage = g.rates.recovery_s;
  job.recovery_s = {from_storage, from_storage, from_storage};
  if (memory_every == 0) return job;
  const SnapshotPrice price = snapshot_price(w, c, step_s);
  job.memory_stall_s = price.seconds();
  job.memory_complete_s = std::max(0.0, price.complete_s - price.seconds());
  // A restart from memory differs only in how the state is read.
  const double rest = from_storage - std::min(c.faults.restart_s, write_s);
  job.recovery_s[static_cast<size_t>(RestartFrom::kOwnMemory)] = rest + price.copy_s;
  job.recovery_s[static_cast<size_t>(RestartFrom::kBuddyMemory)] = rest + price.copy_s + price.send_s;
  return job;
}

std::vector<MemoryCheckpointRow> memory_checkpoint_rows(const Workload& w, const Cluster& c, double step_s,
                                                        int64_t configured) {
  std::vector<int64_t> intervals{0, 10, 1};
  if (configured > 0 && std::ranges::find(intervals, configured) == intervals.end()) intervals.push_back(configured);
  std::vector<MemoryCheckpointRow> rows;
  for (const int64_t every : intervals) {
    const FaultyJob job = faulty_job(w, c, step_s, every);
    rows.push_back(
        {job, every == 0 ? SnapshotPrice{} : snapshot_price(w, c, step_s), simulate_faults(job, kStops, kSeed)});
  }
  return rows;
}

std::string to_text(const std::vector<MemoryCheckpointRow>& rows) {
  const FaultyJob& job = rows.front().job;
  const double nodes = 1 - job.process_share;
  std::string text = fmt::format(
      "Monte Carlo of {} stops, one every {} on average: {:.1f} % end only processes, {:.1f} % lose a node, {:.1f} % a "
      "node and\nits buddy; steps of {:.2f} s; a checkpoint in storage every {} ({}). snapshot: what one adds to "
      "a step;\ncounts: from the end of the step until a restart can use it; lost: steps per stop; recovery: mean\n",
      format_count(static_cast<double>(kStops)), format_duration(job.mtbf_s), 100 * job.process_share,
      100 * nodes * (1 - job.buddies_share), 100 * nodes * job.buddies_share, job.step_s,
      counted(job.storage_every, "step"), format_duration(static_cast<double>(job.storage_every) * job.step_s));
  text += fmt::format("{:<28}{:>18}{:>10}{:>12}{:>12}{:>10}{:>14}\n", "checkpoints", "effective", "lost", "recovery s",
                      "snapshot ms", "counts s", "from storage");
  for (const MemoryCheckpointRow& row : rows) {
    const FaultStatistics& f = row.faults;
    const int64_t every = row.job.memory_every;
    const std::string name = every == 0   ? "storage only"
                             : every == 1 ? "and in memory every step"
                                          : fmt::format("and in memory every {} steps", every);
    const std::string effective = fmt::format("{:.2f} ± {:.2f} %", 100 * f.effective, 100 * f.standard_error);
    text += fmt::format("{:<28}{:>18}{:>10.1f}{:>12.0f}{:>12}{:>10}{:>12.1f} %\n", name, effective, f.lost_steps,
                        f.recovery_s, every == 0 ? "-" : fmt::format("{:.1f}", 1e3 * row.price.seconds()),
                        every == 0 ? "-" : fmt::format("{:.2f}", row.price.complete_s),
                        100 * static_cast<double>(f.restarts[static_cast<size_t>(RestartFrom::kStorage)]) /
                            static_cast<double>(kStops));
  }
  for (const MemoryCheckpointRow& row : rows) {
    if (row.job.memory_every == 0) continue;
    const SnapshotPrice& p = row.price;
    text += fmt::format(
        "every {}: {} of the rank with most, copied in {:.1f} ms ({:.1f} exposed), sent in {:.1f} ms ({:.1f} exposed); "
        "slower compute {:.2f} ms, fixed {:.1f} ms\n",
        counted(row.job.memory_every, "step"), format_bytes(static_cast<int64_t>(p.bytes)), 1e3 * p.copy_s,
        1e3 * p.exposed_copy_s, 1e3 * p.send_s, 1e3 * p.exposed_send_s, 1e3 * p.slowdown_s, 1e3 * p.fixed_s);
  }
  return text;
}

std::string to_json(const std::vector<MemoryCheckpointRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MemoryCheckpointRow& row : rows)
    list.push_back({{"memory_every", row.job.memory_every},
                    {"storage_every", row.job.storage_every},
                    {"step_s", row.job.step_s},
                    {"mtbf_s", row.job.mtbf_s},
                    {"effective", row.faults.effective},
                    {"standard_error", row.faults.standard_error},
                    {"lost_steps", row.faults.lost_steps},
                    {"recovery_s", row.faults.recovery_s},
                    {"restarts", restarts_json(row.faults)},
                    {"snapshot_bytes", row.price.bytes},
                    {"snapshot_s", row.price.seconds()},
                    {"complete_s", row.price.complete_s}});
  return list.dump() + "\n";
}

}  // namespace tri
