// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/torch_file.h>

#include "base/atomic_file.h"
#include "serialize/byte_source.h"
#include "serialize/zip.h"

// load() and save() of files of torch.save, in steps.
namespace lockstep::serialize {

// load() of a whole source.
Value load_source(const ByteSource& source, const LoadOptions& options);

// What save() takes from a value before it reads the storages.
struct Pickled {
  std::string pickle{};
  // Storage i has the key "i".
  std::vector<c10::Storage> storages{};
};

// Protocol 2, as torch.save uses it, restricted to what Python's weights_only loader accepts. Throws
// CheckpointError for values without an equivalent in Python: undefined, quantized or nested tensors, ...
Pickled pickle_value(const Value& value);

void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options);
// Writes to a sink; its exceptions propagate.
void write_zip(const Pickled& pickled, const Sink& sink);
// The number of bytes that write_zip() writes.
std::uint64_t zip_size(const Pickled& pickled);

// Replaces `file` atomically by what `write` writes. Throws CheckpointError that names it.
void replace_file(const std::filesystem::path& file, bool sync,
                  const std::function<void(AtomicFile&)>& write);

}  // namespace lockstep::serialize
