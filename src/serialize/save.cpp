// SPDX-License-Identifier: BSD-3-Clause
#include <system_error>

#include <lockstep/serialize/torch_file.h>

#include "base/atomic_file.h"
#include "serialize/checksum.h"
#include "serialize/errors.h"
#include "serialize/storage.h"
#include "serialize/torch_writer.h"

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

void replace_file(const std::filesystem::path& file, bool sync,
                  const std::function<void(AtomicFile&)>& write) {
  try {
    AtomicFile target(file, {.sync = sync});
    write(target);
    target.commit();
  } catch (const NotOnDisk& error) {
    throw_error("{}: the new file replaced the old one, but may not have reached the disk: {}; save it again",
                file.string(), error.code().message());
  } catch (const std::system_error& error) {
    throw_error("{}: cannot be written: {}; an existing file of this name is unchanged", file.string(),
                error.code().message());
  }
}

void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options) {
  replace_file(file, options.sync, [&](AtomicFile& target) {
    write_zip(pickled, [&](std::span<const std::byte> bytes) { target.write(bytes); });
  });
}

}  // namespace serialize

void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options) {
  const auto pickled = with_source(file.string(), [&] { return serialize::pickle_value(value); });
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
