// Decides which rank reads which stored shard of a checkpoint, and which ranks receive what of it. One rank decides for
// all, from the manifest and every rank's requests; the others need only their share of the plan. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.h"

namespace tri {

// One rank's request for a tensor, made once for all of its regions.
struct TensorRequest {
  std::string name;
  StoredType type = StoredType::kF32;
  Coordinates shape;
  std::vector<Region> regions;  // inside the shape
};
template <class Archive>
void fields(Archive& archive, TensorRequest& request) {
  archive(request.name, request.type, request.shape, request.regions);
}

// Loading converts between f32 and bf16: exactly to f32, rounded to nearest to bf16.
constexpr bool converts(StoredType from, StoredType to) {
  const auto is_float = [](StoredType type) { return type == StoredType::kF32 || type == StoredType::kBf16; };
  return from == to || (is_float(from) && is_float(to));
}

// A shard split into blocks, in the order of its bytes: rectangles of at most `most_bytes` (but at least one element),
// each contiguous in the shard. Shards are read, checked and sent block by block.
class Blocks {
 public:
  Blocks(const Region& shard, int64_t element_bytes, int64_t most_bytes);

  int64_t count() const { return outer_ * chunks_; }
  Region region(int64_t block) const;   // of the tensor
  int64_t offset(int64_t block) const;  // bytes, of its first element in the shard
  int64_t bytes(int64_t block) const { return offset(block + 1) - offset(block); }
  int64_t holding(const Coordinates& element) const;  // the block of an element of the shard

 private:
  Region shard_;
  size_t dim_ = 0;          // the outermost dim of which one step, with all inner dims, fits into a block
  int64_t step_bytes_ = 1;  // of one step of that dim
  int64_t steps_ = 1;       // of it in a block, except for the last
  int64_t chunks_ = 1;      // blocks along it
  int64_t outer_ = 1;       // positions of the dims outside it
};

// Blocks [first, last) of a shard, for a rank that is not its reader.
struct BlockRange {
  int32_t rank = 0;
  int64_t first = 0, last = 0;
};

// A shard that this rank reads once, for itself and for `receivers`.
struct ShardRead {
  int32_t tensor = 0;                  // of this rank's requests
  StoredType type = StoredType::kF32;  // as stored; the request may have the other of f32 and bf16
  int32_t file = 0;                    // of LoadShare::files
  int64_t offset = 0;                  // bytes, in the file
  Region region;
  uint64_t checksum = 0;
  // With receivers: the bytes of shards that this rank reads for others before this one.
  int64_t position = 0;
  std::vector<BlockRange> receivers;  // by rank
};

// A shard of which another rank sends this one blocks [first, last).
struct ShardReceipt {
  int32_t tensor = 0;                  // of this rank's requests
  StoredType type = StoredType::kF32;  // as stored and sent
  int32_t reader = 0;
  Region region;
  int64_t position = 0;  // the reader's
  int64_t first = 0, last = 0;
};

// One rank's share of a load.
struct LoadShare {
  std::vector<FileRecord> files;       // the files that it reads
  std::vector<ShardRead> reads;        // by file and offset
  std::vector<ShardReceipt> receipts;  // by reader and position
};

template <class Archive>
void fields(Archive& archive, Region& region) {
  archive(region.start, region.extent);
}
template <class Archive>
void fields(Archive& archive, FileRecord& file) {
  archive(file.name, file.bytes, file.checksum);
}
template <class Archive>
void fields(Archive& archive, ShardRead& read) {
  archive(read.tensor, read.type, read.file, read.offset, read.region, read.checksum, read.position, read.receivers);
}
template <class Archive>
void fields(Archive& archive, ShardReceipt& receipt) {
  archive(receipt.tensor, receipt.type, receipt.reader, receipt.region, receipt.position, receipt.first, receipt.last);
}
template <class Archive>
void fields(Archive& archive, LoadShare& share) {
  archive(share.files, share.reads, share.receipts);
}

// Returns the shares of all ranks. `requests`: [rank]. Every requested stored shard is read by one of the ranks that
// request it; shards are distributed round-robin among them. A rank gets an error if it requests a tensor that the
// checkpoint lacks, or with another shape, or with a type that loading does not convert; the shares of the others are
// then useless. `readers`: [file of the manifest] the rank that reads all shards of a file, because no other rank sees
// it; it gets an error if it does not request a shard that others do. Empty: every rank sees all files.
std::vector<Result<LoadShare>> divide_load(const Manifest& manifest,
                                           const std::vector<std::vector<TensorRequest>>& requests, int64_t block_bytes,
                                           const std::vector<int>& readers = {});

}  // namespace tri
