#include "lib/bench/comm.h"

#include <functional>

#include "kernels/core/arena.h"
#include "lib/bench/measure.h"
#include "lib/engine/runtime.h"

namespace tri {
namespace {

struct Operation {
  const char* name;
  std::function<void(CommGroup&, Tensor full, Stream&)> run;
  double (*bus_factor)(double ranks);
};

Tensor local_part(CommGroup& group, Tensor full) {
  const int64_t part = full.numel() / group.size();
  return full.flat(group.rank() * part, part);
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> table = {
      {"all-gather", [](CommGroup& g, Tensor full, Stream& s) { g.all_gather(full, local_part(g, full), s); },
       [](double n) { return (n - 1) / n; }},
      {"reduce-scatter", [](CommGroup& g, Tensor full, Stream& s) { g.reduce_scatter(local_part(g, full), full, s); },
       [](double n) { return (n - 1) / n; }},
      {"all-reduce", [](CommGroup& g, Tensor full, Stream& s) { g.all_reduce(full, ReduceOp::kSum, s); },
       [](double n) { return 2 * (n - 1) / n; }},
      {"broadcast", [](CommGroup& g, Tensor full, Stream& s) { g.broadcast(full, 0, s); }, [](double) { return 1.0; }},
  };
  return table;
}

}  // namespace

std::vector<CommRow> bench_comm(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                const CommBench& bench) {
  Arena arena(device, bench.most_bytes);
  const Tensor full = arena.take("buffer", config.precision.compute,
                                 {bench.most_bytes / static_cast<int64_t>(dtype_bytes(config.precision.compute))});
  Config by_messages = config;  // messages may have any size; copies use the stages' own buffers
  by_messages.parallel.pp_transfers = PpTransfers::kMessages;
  Runtime runtime({.config = by_messages, .mesh = mesh, .job = &job, .device = device, .arena = arena}, {});
  std::vector<CommRow> rows;
  const auto sizes = [&] {
    std::vector<int64_t> list;
    for (int64_t bytes = bench.most_bytes; bytes >= 1 << 10; bytes /= 16) list.insert(list.begin(), bytes);
    return list;
  }();
  const auto buffer = [&](int64_t bytes, int parts) {
    const int64_t elements = bytes / static_cast<int64_t>(dtype_bytes(config.precision.compute));
    return full.flat(0, elements / parts * parts);
  };
  for (const auto& [axis, transfers] : {std::pair{"tp", &runtime.tp()}, {"dp", &runtime.dp()}}) {
    const int ranks = transfers->size();
    if (ranks == 1) continue;
    const GroupOnStream& collectives = transfers->collectives();
    for (const Operation& operation : operations())
      for (const int64_t bytes : sizes) {
        const Tensor size = buffer(bytes, ranks);
        const auto call = [&](Tensor part) { operation.run(collectives.group(), part, collectives.stream()); };
        std::function<void()> before;
        if (bench.queued) before = [&] { call(buffer(bench.most_bytes, ranks)); };
        const double seconds = median_seconds([&] { call(size); }, bench.rounds, device, collectives.stream(), before);
        rows.push_back({axis, operation.name, ranks, size.bytes(), 1e6 * seconds,
                        static_cast<double>(size.bytes()) / seconds * operation.bus_factor(ranks)});
      }
  }
  // Times sends from the first stage to the second.
  const PipelineLinks links = runtime.links();
  if (mesh.axis("pp").size > 1 && mesh.axis("pp").rank <= 1)
    for (const int64_t bytes : sizes) {
      const Tensor size = buffer(bytes, 1);
      const bool sends = mesh.axis("pp").rank == 0;
      const Link& link = sends ? links.send_forward : links.recv_forward;
      const auto transfer = [&] { sends ? link.send(size, 0) : link.recv(size, 0); };
      const double seconds = median_seconds(transfer, bench.rounds, device, *link.stream);
      rows.push_back(
          {"pp", "send/receive", 2, size.bytes(), 1e6 * seconds, static_cast<double>(size.bytes()) / seconds});
    }
  runtime.synchronize();
  return rows;
}

}  // namespace tri
