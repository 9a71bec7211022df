// SPDX-License-Identifier: BSD-3-Clause
#include <system_error>

#include <lockstep/serialize/torch_file.h>

#include "base/atomic_file.h"
#include "base/throw_error.h"
#include "serialize/storage.h"
#include "serialize/torch_format.h"
#include "serialize/with_source.h"

namespace lockstep {
namespace serialize {
namespace {

// `add_storage(zip, key, name)` adds the record of a storage.
template <typename AddStorage>
void write_records(const Pickled& pickled, const Sink& sink, const AddStorage& add_storage) {
  ZipWriter zip(sink);
  zip.add("data.pkl", pickled.pickle);
  zip.add(".format_version", "1");
  zip.add(".storage_alignment", "64");
  zip.add("byteorder", "little");
  for (std::size_t key = 0; key < pickled.storages.size(); ++key)
    add_storage(zip, key, fmt::format("data/{}", key));
  zip.finish();
}

}  // namespace

void write_zip(const Pickled& pickled, const Sink& sink) {
  Checksums checksums(pickled.storages);
  write_records(pickled, sink, [&](ZipWriter& zip, std::size_t key, const std::string& name) {
    auto storage = pickled.storages[key];
    if (!storage.device().is_cpu()) storage = storage_bytes(storage).cpu().storage();
    const auto bytes = bytes_of(storage);
    zip.add(name, bytes, [&] { return checksums.of(key, bytes); });
  });
}

std::uint64_t zip_size(const Pickled& pickled) {
  std::uint64_t size = 0;
  const auto count = [&](std::span<const std::byte> bytes) { size += bytes.size(); };
  write_records(pickled, count, [&](ZipWriter& zip, std::size_t key, const std::string& name) {
    zip.add(name, {static_cast<const std::byte*>(nullptr), pickled.storages[key].nbytes()}, [] { return 0; });
  });
  return size;
}

void replace_file(const std::filesystem::path& file, bool sync,
                  const std::function<void(AtomicFile&)>& write) {
  try {
    AtomicFile target(file, {.sync = sync, .for_one_rank = true});
    write(target);
    target.commit();
  } catch (const NotOnDisk& error) {
    throw_error<CheckpointError>(
        "{}: the new file replaced the old one, but may not have reached the disk: {}; save it again",
        file.string(), error.code().message());
  } catch (const std::system_error& error) {
    throw_error<CheckpointError>("{}: cannot be written: {}; an existing file of this name is unchanged",
                                 file.string(), error.code().message());
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
