// SPDX-License-Identifier: BSD-3-Clause
// Whatever the bytes are, reading them gives a value or a CheckpointError. The first byte says what they are
// taken for: a file, the pickle in one, a file whose checksums are compared, a safetensors file, the metadata
// of a distributed checkpoint, or the structure in one.
#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/Functions.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/distributed_metadata.h"
#include "checkpoint/flatten.h"
#include "checkpoint/write_metadata.h"
#include "serialize/byte_source.h"
#include "serialize/safetensors_header.h"
#include "serialize/unpickler.h"

namespace {

using lockstep::serialize::StorageRecord;

// Has every storage that a pickle asks for, up to a size.
c10::Storage any_storage(const StorageRecord& record) {
  constexpr std::uint64_t most = 1 << 16;
  if (record.bytes > most) throw lockstep::CheckpointError("too large");
  return at::zeros({static_cast<std::int64_t>(record.bytes)}, at::kByte).storage();
}

void read_as_pickle(std::span<const char> bytes) {
  const auto pickle = lockstep::pickle::read_pickle(bytes, lockstep::serialize::is_in_checkpoints);
  const auto value = lockstep::serialize::unpickle(pickle, any_storage);
  lockstep::repr(value);
  const auto again = lockstep::load_bytes(lockstep::save_bytes(value));
  if (again.type_name() != value.type_name()) __builtin_trap();
}

// What was read is written, and read again, and put where its paths lead.
void read_as_metadata(std::span<const char> bytes) {
  namespace dcp = lockstep::distributed_checkpoint;
  const auto metadata = dcp::parse_metadata({bytes.data(), bytes.size()});
  const auto again = dcp::parse_metadata(dcp::write_metadata(metadata));
  if (again.entries.size() != metadata.entries.size()) __builtin_trap();
  lockstep::Value root = lockstep::Dict();
  for (const auto& [name, entry] : again.entries) dcp::place_at(root, entry.path.items, name);
}

void read_as_structure(std::span<const char> bytes) {
  const auto fill = [](const std::string& name) { return lockstep::Value(name); };
  lockstep::repr(lockstep::distributed_checkpoint::fill_structure(lockstep::load_bytes(bytes), fill));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 6) {
      case 0:
        lockstep::load_bytes(bytes);
        break;
      case 1:
        read_as_pickle(bytes);
        break;
      case 2:
        lockstep::load_bytes(bytes, {.verify = true});
        break;
      case 4:
        read_as_metadata(bytes);
        break;
      case 5:
        read_as_structure(bytes);
        break;
      default:
        lockstep::safetensors::read_header(*lockstep::serialize::open_bytes(bytes, "bytes"));
    }
  } catch (const lockstep::CheckpointError&) {
    return 0;
  }
  return 0;
}
