#include "lib/fault/node_dump.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/poll.h"
#include "io/flight_recorder/flight_recorder.h"
#include "io/flight_recorder/record.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/nccl_report.h"
#include "lib/fault/symbols.h"
#include "lib/fault/thread_stacks.h"

namespace tri {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kMaxEvents = 256;        // per rank, in its record
constexpr double kNcclSeconds = 5;     // for NCCL's own report
constexpr double kFirstNodeFirst = 3;  // seconds; then another node writes the report

// Requests from the ranks with a running process their stacks and the state of their streams, and waits for the
// answers.
void request_states(const DumpingNode& node, double seconds) {
  const auto begun = std::chrono::steady_clock::now();
  struct Request {
    const flight::Image* image;
    uint32_t number;
  };
  std::vector<Request> requests;
  for (flight::Image* const image : node.images) {
    if (image == nullptr) continue;
    const uint32_t request = image->dump_requested.fetch_add(1) + 1;
    if (process_state_of(*image) == ProcessState::kRuns && image->stack_signal != 0)
      requests.push_back({image, request});
  }
  request_stacks(node.images, seconds);
  const auto all_answered = [&] {
    return std::all_of(requests.begin(), requests.end(), [](const Request& r) {
      return static_cast<int32_t>(r.image->dump_answered.load() - r.number) >= 0;
    });
  };
  poll_for(Seconds(seconds - seconds_since(begun)), std::chrono::milliseconds(10), all_answered);
}

std::vector<RankRecord> records_of(const DumpingNode& node) {
  std::vector<RankRecord> records;
  for (const std::string& path : node.recorders) {
    auto read = read_flight_record(path, kMaxEvents);
    if (!read) continue;
    RankRecord& record = records.emplace_back(std::move(read).value());
    record.process_state = process_state_of(record);
    if (!is_there(record.process_state)) continue;
    for (StackRecord& stack : silent_threads(record)) record.stacks.push_back(std::move(stack));
  }
  return records;
}

void name_functions(std::vector<RankRecord>& records) {
  Symbolizer symbolizer;
  for (RankRecord& record : records)
    for (StackRecord& stack : record.stacks)
      if (!stack.frames.empty()) stack.symbols = symbolizer.names(record.process, stack.frames);
}

// Adds the records that other nodes have written in the meantime.
void add_others(const DumpingNode& node, const std::string& folder, std::vector<RankRecord>& records) {
  std::vector<int> own, others;
  for (const RankRecord& record : records) own.push_back(record.world_rank);
  std::sort(own.begin(), own.end());
  const std::vector<int> all = recorded_ranks(folder);
  std::set_difference(all.begin(), all.end(), own.begin(), own.end(), std::back_inserter(others));
  for (RankRecord& record : read_records(folder, others))
    if (record.world_size == node.world_size) records.push_back(std::move(record));
}

class Dump {
 public:
  Dump(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress)
      : node_(node),
        order_(order),
        progress_(progress),
        one_node_(static_cast<int>(node.recorders.size()) == node.world_size) {
    outcome_.trigger = order.trigger;
  }

  DumpOutcome run() {
    outcome_.taken = process_wall_seconds();
    request_states(node_, order_.answer_seconds);
    records_ = records_of(node_);
    if (one_node_) locate();  // before the first call that storage can block
    name_functions(records_);
    if (one_node_) locate();  // now the stacks show file system calls
    if (const auto done = store(); !done) outcome_.problem = done.error().message;
    return outcome_;
  }

 private:
  void locate() {
    outcome_.verdict = locate_hang(records_, outcome_.trigger);
    progress_(outcome_);
  }

  Result<void> store() {
    if (node_.run_dir.empty()) return file_error("the job has no run folder to write them to");
    auto joined = join_dump(node_.run_dir, node_.attempt, order_.number, order_.trigger);
    if (!joined) return joined.error();
    outcome_.folder = joined.value().path;
    outcome_.trigger = joined.value().trigger;
    outcome_.opened = joined.value().opened;
    progress_(outcome_);
    // The verdict needs no records of other nodes: write it first, since the job may end before all is written.
    if (one_node_)
      if (const auto reported = report(); !reported) return reported;
    if (const auto written = write_records(); !written) return written;
    if (const auto written = write_nccl_report(); !written) return written;
    if (one_node_) return {};
    return outcome_.opened ? first_node() : later_node();
  }

  Result<void> write_records() const {
    Result<void> written;
    for (const RankRecord& record : records_)
      if (auto one = write_record(outcome_.folder, record); !one) written = one;
    return written;
  }

  Result<void> write_nccl_report() const {
    if (!outcome_.opened || !node_.uses_nccl) return {};
    const std::string report = nccl_report(kNcclSeconds);
    return report.empty() ? Result<void>()
                          : write_file(fmt::format("{}/nccl_{}.txt", outcome_.folder, node_.host), report);
  }

  Result<void> first_node() {
    const auto size = static_cast<size_t>(node_.world_size);
    poll_for(Seconds(order_.timeout_seconds), std::chrono::milliseconds(500),
             [&] { return recorded_ranks(outcome_.folder).size() >= size; });
    return report();
  }

  // Waits for the report of the first node, and writes it if that node has failed or its storage hangs.
  Result<void> later_node() {
    const auto reported = [&] {
      const auto headline = read_headline(outcome_.folder);
      if (headline) outcome_.verdict.headline = *headline;
      return headline.has_value();
    };
    const double timeout = order_.timeout_seconds + (node_.uses_nccl ? kNcclSeconds : 0) + kFirstNodeFirst;
    if (!poll_for(Seconds(timeout), std::chrono::milliseconds(1000), reported)) return report();
    progress_(outcome_);
    return {};
  }

  Result<void> report() {
    if (!one_node_) {
      add_others(node_, outcome_.folder, records_);
      locate();
    }
    const auto first = write_report(outcome_.folder, records_, outcome_.trigger, outcome_.verdict);
    if (!first) return first.error();
    outcome_.wrote_report = first.value();
    progress_(outcome_);
    return {};
  }

  const DumpingNode& node_;
  const DumpOrder& order_;
  const DumpProgress& progress_;
  const bool one_node_;
  std::vector<RankRecord> records_;
  DumpOutcome outcome_;
};

}  // namespace

DumpOutcome dump_node(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress) {
  return Dump(node, order, progress).run();
}

}  // namespace tri
