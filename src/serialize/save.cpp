// SPDX-License-Identifier: BSD-3-Clause
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "serialize/checksum.h"
#include "serialize/pickler.h"
#include "serialize/storage_bytes.h"
#include "serialize/write_file.h"

namespace lockstep {
namespace serialize {
namespace {

void write_front(ZipWriter& zip, const Pickled& pickled) {
  zip.add("data.pkl", pickled.pickle);
  zip.add(".format_version", "1");
  zip.add(".storage_alignment", "64");
  zip.add("byteorder", "little");
}

}  // namespace

void write_zip(const Pickled& pickled, const Sink& sink) {
  ZipWriter zip(sink);
  write_front(zip, pickled);
  Checksums checksums(pickled.storages);
  for (std::size_t key = 0; key < pickled.storages.size(); ++key) {
    auto storage = pickled.storages[key];
    if (!storage.device().is_cpu()) storage = storage_bytes(storage).cpu().storage();
    const auto bytes = bytes_of(storage);
    zip.add(fmt::format("data/{}", key), bytes, [&] { return checksums.of(key, bytes); });
  }
  zip.finish();
}

std::uint64_t zip_size(const Pickled& pickled) {
  std::uint64_t size = 0;
  ZipWriter zip([&](std::span<const std::byte> bytes) { size += bytes.size(); });
  write_front(zip, pickled);
  for (std::size_t key = 0; key < pickled.storages.size(); ++key) {
    const std::span bytes(static_cast<const std::byte*>(nullptr), pickled.storages[key].nbytes());
    zip.add(fmt::format("data/{}", key), bytes, [] { return 0; });
  }
  zip.finish();
  return size;
}

void fail_to_sync(const std::filesystem::path& file, const NotOnDisk& error) {
  throw CheckpointError(fmt::format(
      "{}: the new file is in its place, but not known to have reached the disk: {}; save it again",
      file.string(), error.code().message()));
}

void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options) {
  try {
    AtomicFile target(file, {.sync = options.sync});
    write_zip(pickled, [&](std::span<const std::byte> bytes) { target.write(bytes); });
    target.commit();
  } catch (const NotOnDisk& error) {
    fail_to_sync(file, error);
  } catch (const std::system_error& error) {
    throw CheckpointError(
        fmt::format("{}: the checkpoint cannot be written: {}; what was there before is unchanged",
                    file.string(), error.code().message()));
  }
}

}  // namespace serialize

void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options) {
  serialize::Pickled pickled;
  try {
    pickled = serialize::pickle_value(value);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
  serialize::write_file(pickled, file, options);
}

std::string save_bytes(const Value& value) {
  std::string bytes;
  serialize::write_zip(serialize::pickle_value(value), [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

}  // namespace lockstep
