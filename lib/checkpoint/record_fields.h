// The records of stored shards as messages between ranks (lib/comm/host/messages.h), and as the table of a segment in
// memory.
#pragma once

#include "io/checkpoint/manifest.h"
#include "lib/checkpoint/load_plan.h"
#include "lib/comm/host/messages.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, StoredShard& shard) {
  archive(shard.file, shard.dataset, shard.offset, shard.region, shard.checksum);
}
template <class Archive>
void fields(Archive& archive, TensorRecord& tensor) {
  archive(tensor.name, tensor.type, tensor.shape, tensor.shards);
}
template <class Archive>
void fields(Archive& archive, ShardRecord& record) {
  archive(record.file, record.tensors);
}
template <class Archive>
void fields(Archive& archive, CheckpointInfo& info) {
  archive(info.texts, info.numbers, info.lists);
}

}  // namespace tri
