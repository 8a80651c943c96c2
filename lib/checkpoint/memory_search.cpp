#include "lib/checkpoint/memory_search.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/checkpoint/shard_reader.h"
#include "lib/checkpoint/record_fields.h"
#include "lib/checkpoint/weights.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, SegmentTable& table) {
  archive(table.record, table.info);
}
template <class Archive>
void fields(Archive& archive, SegmentIdentity& identity) {
  archive(identity.world_rank, identity.world_size, identity.slot, identity.step, identity.layout, identity.attempt,
          identity.run_dir);
}
template <class Archive>
void fields(Archive& archive, SegmentSight& sight) {
  archive(sight.host, sight.file_name, sight.copy, sight.identity);
}
template <class Archive>
void fields(Archive& archive, GenerationChoice& choice) {
  archive(choice.attempt, choice.step, choice.slot, choice.sources);
}

std::string to_text(const SegmentTable& table) { return to_bytes(table); }

Result<SegmentTable> segment_table_from(std::string_view text) {
  try {
    return from_bytes<SegmentTable>(text);
  } catch (const Fatal& problem) {
    return file_error("the table of a segment: {}", problem.what());
  }
}

Result<void> check_payload(const ShardRecord& record, std::string_view file, const std::string& path, int threads) {
  for (const TensorRecord& tensor : record.tensors)
    for (const StoredShard& shard : tensor.shards) {
      const int64_t bytes = num_elements(shard.region.extent) * element_bytes(tensor.type);
      if (shard.offset < 0 || bytes < 0 || shard.offset + bytes > static_cast<int64_t>(file.size()))
        return file_error("{}: a shard of tensor {} is outside the file", path, tensor.name);
    }
  Mutex mutex;
  Result<void> result;
  for_shards(record, threads, [&](const TensorRecord& tensor, const StoredShard& shard) {
    const auto bytes = static_cast<size_t>(num_elements(shard.region.extent) * element_bytes(tensor.type));
    const uint64_t found = xxh3_64(file.data() + shard.offset, bytes);
    if (found == shard.checksum) return;
    const MutexLock lock(mutex);
    if (result) result = damaged_shard(path, tensor, shard, found);
  });
  return result;
}

std::optional<GenerationChoice> choose_generation(const std::vector<SegmentSight>& sights, const MemoryHistory& history,
                                                  uint64_t layout, int64_t after,
                                                  const std::vector<std::string>& hosts) {
  const auto num_ranks = static_cast<int32_t>(hosts.size());
  std::map<std::tuple<int64_t, std::string, int32_t>, std::vector<const SegmentSight*>> generations;
  for (const SegmentSight& sight : sights) {
    const SegmentIdentity& of = sight.identity;
    if (of.layout == layout && of.world_size == num_ranks && of.world_rank >= 0 && of.world_rank < num_ranks &&
        of.step > after && history.allows(of.attempt, of.step))
      generations[{of.step, of.attempt, of.slot}].push_back(&sight);
  }
  for (auto generation = generations.rbegin(); generation != generations.rend(); ++generation) {
    const auto& [key, segments] = *generation;
    std::vector<const SegmentSight*> sources(hosts.size());
    const auto worth = [&](const SegmentSight* sight, size_t rank) {
      return sight == nullptr ? 0 : 1 + 2 * (sight->host == hosts[rank]) + !sight->copy;
    };
    for (const SegmentSight* sight : segments) {
      const auto rank = static_cast<size_t>(sight->identity.world_rank);
      if (worth(sight, rank) > worth(sources[rank], rank)) sources[rank] = sight;
    }
    if (std::find(sources.begin(), sources.end(), nullptr) != sources.end()) continue;
    GenerationChoice choice{.attempt = std::get<1>(key), .step = std::get<0>(key), .slot = std::get<2>(key)};
    for (const SegmentSight* source : sources) choice.sources.push_back(*source);
    return choice;
  }
  return std::nullopt;
}

namespace {

// A source and the rank on its host that reads it.
int reader_of(const SegmentSight& source, int owner, const std::vector<std::string>& hosts) {
  if (hosts[static_cast<size_t>(owner)] == source.host) return owner;
  std::vector<int> there;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (hosts[rank] == source.host) there.push_back(static_cast<int>(rank));
  return there[static_cast<size_t>(owner) % there.size()];
}

// Threads of each rank while nothing else is computed.
int loading_threads(const Job& job) { return std::clamp(num_cores() / job.node_size(), 1, 16); }

Result<void> verify(const std::string& folder, const SegmentSight& source, int threads) {
  const std::string path = folder + "/" + source.file_name;
  const auto segment = read_segment(folder, source.file_name);
  if (!segment) return segment.error();
  const auto table = segment_table_from(segment.value().table);
  if (!table) return table.error();
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  return check_payload(table.value().record, file.value().text(), path, threads);
}

// Sends segments to the ranks whose state they are, where those are on other nodes now, and makes them own segments
// there. Collective.
Result<void> bring(const MemorySearch& search, const GenerationChoice& choice, const std::vector<std::string>& hosts,
                   Job& job) {
  const int me = job.world_rank();
  const auto own_name = [&](int rank) {
    return SegmentName{.run = run_key(search.run_dir),
                       .host = hosts[static_cast<size_t>(rank)],
                       .world_rank = rank,
                       .copy = false,
                       .slot = choice.slot};
  };
  constexpr int64_t kBlockBytes = int64_t{4} << 20;
  struct Shape {
    int64_t table_capacity = 0, bytes = 0;
  };
  std::vector<MappedFile> files;
  std::vector<std::pair<int, Shape>> shapes;  // to send, by owner
  Result<void> mine;
  std::vector<std::pair<int, size_t>> sends;  // owner, index of files
  const MappedFile* local = nullptr;
  Shape local_shape;
  files.reserve(choice.sources.size());
  std::vector<Shape> shape_of(choice.sources.size());
  for (size_t owner = 0; owner < choice.sources.size(); ++owner) {
    const SegmentSight& source = choice.sources[owner];
    const int rank = static_cast<int>(owner);
    if (reader_of(source, rank, hosts) != me || source.file_name == own_name(rank).text()) continue;
    const auto segment = read_segment(search.folder, source.file_name);
    auto file = MappedFile::open(search.folder + "/" + source.file_name);
    if (!segment || !file) {
      mine = segment ? file.error() : segment.error();
      continue;
    }
    shape_of[owner] = {segment.value().payload_offset - kSegmentHeaderBytes, segment.value().bytes};
    files.push_back(std::move(file).value());
    if (rank == me) {
      local = &files.back();
      local_shape = shape_of[owner];
    } else {
      sends.emplace_back(rank, files.size() - 1);
    }
  }
  if (auto agreed = agree(job, mine); !agreed) return agreed;
  const SegmentSight& source = choice.sources[static_cast<size_t>(me)];
  const int reader = reader_of(source, me, hosts);
  const bool moves = source.file_name != own_name(me).text();
  // First the sizes, then the bytes.
  Shape shape = local_shape;
  std::vector<Job::Outgoing> outgoing;
  std::vector<Job::Incoming> incoming;
  for (const auto& [owner, file] : sends)
    outgoing.push_back({owner, &shape_of[static_cast<size_t>(owner)], sizeof(Shape)});
  if (moves && reader != me)
    incoming.push_back({reader, sizeof(Shape), [&](const char* data) { std::memcpy(&shape, data, sizeof shape); }});
  job.exchange(outgoing, incoming);
  std::unique_ptr<MemorySegment> segment;
  if (moves) {
    // The payload is rounded up to whole pages in the file: the sizes are equal either way.
    auto made = MemorySegment::create(search.folder, own_name(me), shape.table_capacity,
                                      shape.bytes - kSegmentHeaderBytes - shape.table_capacity);
    mine = made ? Result<void>{} : Result<void>(made.error());
    if (made) segment = std::move(made).value();
  }
  if (auto agreed = agree(job, mine); !agreed) return agreed;
  outgoing.clear();
  incoming.clear();
  for (const auto& [owner, file] : sends) {
    const std::string_view text = files[file].text();
    for (int64_t at = 0; at < static_cast<int64_t>(text.size()); at += kBlockBytes)
      outgoing.push_back({owner, text.data() + at, std::min(kBlockBytes, static_cast<int64_t>(text.size()) - at)});
  }
  const auto take = [&](int64_t at, const char* data, int64_t bytes) {
    const int64_t skip = at == 0 ? kSegmentStateBytes : 0;
    std::memcpy(segment->memory() + at + skip, data + skip, static_cast<size_t>(bytes - skip));
  };
  if (segment) segment->begin();
  if (segment && reader == me && local != nullptr) {
    take(0, local->text().data(), static_cast<int64_t>(local->text().size()));
  } else if (segment) {
    for (int64_t at = 0; at < shape.bytes; at += kBlockBytes) {
      const int64_t bytes = std::min(kBlockBytes, shape.bytes - at);
      incoming.push_back({reader, bytes, [&take, at, bytes](const char* data) { take(at, data, bytes); }});
    }
  }
  job.exchange(outgoing, incoming);
  if (segment)
    mine = segment->finish_copy([&](std::string_view text) -> Result<void> {
      const auto table = segment_table_from(text);
      if (!table) return table.error();
      return check_payload(table.value().record, {segment->memory(), static_cast<size_t>(segment->bytes())},
                           segment->path(), loading_threads(job));
    });
  return agree(job, mine);
}

struct Collected {
  std::string table;
  FileRecord file;
};
template <class Archive>
void fields(Archive& archive, Collected& collected) {
  archive(collected.table, collected.file);
}

}  // namespace

std::optional<MemoryGeneration> find_in_memory(const MemorySearch& search, Job& job, std::string& why) {
  const bool root = job.world_rank() == 0;
  const std::vector<std::string> hosts = job.all_gather(job.host());
  const std::string run = run_key(search.run_dir);
  // The first rank of each host lists its segments.
  std::vector<SegmentSight> mine;
  if (std::find(hosts.begin(), hosts.end(), job.host()) - hosts.begin() == job.world_rank())
    for (const auto& [file_name, name] : list_segments(search.folder)) {
      if (name.run != run || name.host != job.host()) continue;
      const auto segment = read_segment(search.folder, file_name);
      if (!segment) {
        log_info("{}", segment.error().message);
        continue;
      }
      if (segment.value().identity.run_dir == search.run_dir)
        mine.push_back({name.host, file_name, name.copy, segment.value().identity});
    }
  std::vector<SegmentSight> all;
  for (std::vector<SegmentSight>& of_rank : job.gather(mine))
    std::move(of_rank.begin(), of_rank.end(), std::back_inserter(all));
  why.clear();
  std::optional<GenerationChoice> choice;
  while (true) {
    if (root) choice = choose_generation(all, search.history, search.layout, search.after, hosts);
    if (root && !choice && !all.empty() && why.empty())
      why = search.history.attempt.empty()
                ? "no attempt is known that wrote the segments in memory"
                : "memory holds no complete generation of this layout that is newer than the checkpoint on storage";
    choice = job.broadcast(choice);
    if (!choice || search.verify == Verify::kWhileLoading) break;
    // Each source is verified by its reader.
    std::vector<std::string> damaged;
    for (size_t owner = 0; owner < choice->sources.size(); ++owner) {
      const SegmentSight& source = choice->sources[owner];
      if (reader_of(source, static_cast<int>(owner), hosts) != job.world_rank()) continue;
      if (const auto good = verify(search.folder, source, loading_threads(job)); !good) {
        log_warn("checkpoint in memory skipped: {}", good.error().message);
        damaged.push_back(source.file_name);
      }
    }
    std::set<std::string> bad;
    for (const std::vector<std::string>& of_rank : job.all_gather(damaged)) bad.insert(of_rank.begin(), of_rank.end());
    if (bad.empty()) break;
    std::erase_if(all, [&](const SegmentSight& sight) { return bad.contains(sight.file_name); });
    why = fmt::format("{} segments in memory are damaged", bad.size());
  }
  why = choice ? "" : job.broadcast(why);
  if (!choice) return std::nullopt;
  if (auto brought = bring(search, *choice, hosts, job); !brought) {
    why = brought.error().message;
    return std::nullopt;
  }
  MemoryGeneration generation{.attempt = choice->attempt, .slot = choice->slot};
  for (const SegmentSight& source : choice->sources) ++(source.copy ? generation.buddy_ranks : generation.own_ranks);
  const SegmentName own{
      .run = run, .host = job.host(), .world_rank = job.world_rank(), .copy = false, .slot = choice->slot};
  Result<Collected> found = Collected{};
  if (auto segment = read_segment(search.folder, own.text()))
    found = Collected{std::move(segment.value().table), {.name = own.text(), .bytes = segment.value().bytes}};
  else
    found = segment.error();
  if (auto agreed = agree(job, found); !agreed) {
    why = agreed.error().message;
    return std::nullopt;
  }
  const std::vector<Collected> collected = job.gather(found.value());
  FoundCheckpoint& from = generation.found;
  const auto assemble = [&]() -> Result<void> {
    Manifest& manifest = generation.manifest;
    manifest.attempt = choice->attempt;
    manifest.step = choice->step;
    for (size_t rank = 0; rank < collected.size(); ++rank) {
      auto table = segment_table_from(collected[rank].table);
      if (!table) return table.error();
      ShardRecord& record = table.value().record;
      record.file = collected[rank].file;
      for (TensorRecord& tensor : record.tensors)
        for (StoredShard& shard : tensor.shards) shard.file = record.file.name;
      if (table.value().info) manifest.info = *table.value().info;
      if (auto added = manifest.add(record); !added) return added;
      generation.readers.push_back(static_cast<int>(rank));
    }
    const auto samples = manifest.info.numbers.find("samples");
    if (samples == manifest.info.numbers.end()) return file_error("it does not contain the number of samples");
    auto history = fp8_history_of(manifest.info);
    if (!history) return history.error();
    from.progress = {.steps = choice->step, .samples = samples->second, .fp8_history = std::move(history).value()};
    if (const auto recent = manifest.info.lists.find(kRecentSteps); recent != manifest.info.lists.end())
      from.progress.recent_steps = recent->second;
    from.progress.router_bias = router_bias_of(manifest.info);
    from.has_average = holds_average(manifest);
    return search.may_load ? search.may_load(search.folder, manifest) : Result<void>{};
  };
  const Result<void> assembled = root ? assemble() : Result<void>{};
  if (auto agreed = agree(job, assembled); !agreed) {
    why = agreed.error().message;
    return std::nullopt;
  }
  from.folder = search.folder;
  const RunProgress& progress = from.progress;
  const auto numbers = job.broadcast(std::pair(std::pair(progress.steps, progress.samples), from.has_average));
  const auto lists =
      job.broadcast(std::vector<std::vector<float>>{progress.fp8_history, progress.recent_steps, progress.router_bias});
  from.progress = {numbers.first.first, numbers.first.second, lists[0], lists[1], lists[2]};
  from.has_average = numbers.second;
  return generation;
}

}  // namespace tri
