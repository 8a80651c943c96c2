// checkpoint.h5: every tensor whole, under its name, as an HDF5 virtual dataset over the shards, so that h5py, h5dump
// or MATLAB can read the model as if it were one file. This program never reads it.
#pragma once

#include <string>

#include "io/checkpoint/manifest.h"

namespace tri {

// Writes FOLDER/checkpoint.h5 atomically and durably: the tensors of `manifest`, and its step, attempt, texts and
// numbers as /info/... . Shards are found relative to the file, so the folder may be moved. A missing shard reads as
// NaN (integers: the largest). Returns the record for Manifest::files.
Result<FileRecord> write_index(const std::string& folder, const Manifest& manifest);

}  // namespace tri
