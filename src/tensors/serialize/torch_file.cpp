// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <caffe2/serialize/versions.h>
#include <cstring>
#include <new>
#include <unordered_map>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <lockstep/serialize/torch_file.h>

#include "base/atomic_file.h"
#include "base/caller_place.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/version.h"
#include "serialize/byte_source.h"
#include "serialize/storage.h"
#include "serialize/torch_format.h"
#include "serialize/unpickler.h"

namespace lockstep {
namespace serialize {
namespace {

// The zip format.

constexpr std::string_view kPickle = "data.pkl";

// The folder inside the archive that everything lies in, with its slash.
std::string folder_of(const ZipReader& zip) {
  for (const auto& [name, record] : zip.records()) {
    const auto slash = name.find('/');
    if (slash != std::string::npos && std::string_view(name).substr(slash + 1) == kPickle)
      return name.substr(0, slash + 1);
  }
  throw_error<CheckpointError>("{}: it is a zip file, but not one of torch.save: it has no {}",
                               zip.source().name(), kPickle);
}

std::uint64_t number_in(const ZipReader& zip, const ZipRecord& record, std::string_view what) {
  constexpr std::uint64_t most_digits = 20;
  const auto text = record.size <= most_digits ? zip.read(record) : "";
  if (const auto number = parse_number<std::uint64_t>(text.substr(0, text.find('\n')))) return *number;
  throw_error<CheckpointError>("{}: its {} is not a number", zip.source().name(), what);
}

// PyTorch's version of its zip files, and the number of Lockstep's format in a record that Python ignores.
void check_formats(const ZipReader& zip, const std::string& folder) {
  if (const auto* record = zip.find(folder + "version")) {
    constexpr auto newest = caffe2::serialize::kMaxSupportedFileFormatVersion;
    const auto version = number_in(zip, *record, "version");
    if (version > newest) {
      throw_error<CheckpointReadError>(
          "{}: written by a later PyTorch in file format {}; this LibTorch reads up to {}: update LibTorch",
          zip.source().name(), version, newest);
    }
  }
  if (const auto* record = zip.find(fmt::format("{}.{}", folder, kFormatField))) {
    const auto reason = reason_not_to_read(formats::kCheckpoints, number_in(zip, *record, kFormatField));
    if (!reason.empty()) throw_error<CheckpointReadError>("{}: {}", zip.source().name(), reason);
  }
}

bool is_big_endian(const ZipReader& zip, const std::string& folder) {
  const auto* record = zip.find(folder + "byteorder");
  if (record == nullptr) return false;
  const auto order = record->size < 16 ? zip.read(*record) : "";
  if (order == "little" || order == "big") return order == "big";
  throw_error<CheckpointError>("{}: its byte order is unknown", zip.source().name());
}

// Loads each storage once.
class ZipStorages {
 public:
  ZipStorages(const ZipReader& zip, const std::string& folder, const LoadOptions& options)
      : zip_(zip), folder_(folder), options_(options), big_endian_(is_big_endian(zip, folder)) {}

  c10::Storage load(const StorageRecord& wanted) {
    const auto known = loaded_.find(wanted.key);
    if (known == loaded_.end()) return loaded_.emplace(wanted.key, read(wanted)).first->second;
    check_size(wanted, known->second.nbytes());
    return known->second;
  }

 private:
  void check_size(const StorageRecord& wanted, std::uint64_t there) const {
    if (wanted.bytes <= there) return;
    throw_error<CheckpointError>("{}: storage {} should have {} bytes, but has {}", zip_.source().name(),
                                 wanted.key, wanted.bytes, there);
  }

  c10::Storage read(const StorageRecord& wanted) const {
    const auto* record = zip_.find(folder_ + "data/" + wanted.key);
    if (record == nullptr)
      throw_error<CheckpointError>("{}: the data of storage {} is missing", zip_.source().name(), wanted.key);
    check_size(wanted, record->size);
    if (options_.map_location.device().is_meta()) return meta_storage(wanted.bytes);
    auto storage = zip_.source().storage(zip_.offset(*record), record->size);
    if (big_endian_) swap_byte_order(storage, wanted.dtype);
    return place_storage(std::move(storage), options_.map_location);
  }

  const ZipReader& zip_;
  const std::string& folder_;
  const LoadOptions& options_;
  bool big_endian_;
  std::unordered_map<std::string, c10::Storage> loaded_;
};

Value load_zip(const ByteSource& source, const LoadOptions& options) {
  const ZipReader zip(source);
  const auto folder = folder_of(zip);
  if (zip.find(folder + "constants.pkl") != nullptr) {
    throw_error<CheckpointError>(
        "{}: it is a TorchScript archive, written by C++'s torch::save or by torch.jit.save; read it with "
        "torch::load, then write it with lockstep::save(lockstep::state_dict(*module), ...)",
        source.name());
  }
  zip.refuse_compression();
  if (options.verify) zip.verify_checksums();
  check_formats(zip, folder);
  const auto& record = *zip.find(folder + std::string(kPickle));
  const auto text = zip.read(record);
  ZipStorages storages(zip, folder, options);
  return unpickle(pickle::read_pickle(text, is_in_checkpoints),
                  [&](const StorageRecord& wanted) { return storages.load(wanted); });
}

// The format before PyTorch 1.6, which it still writes on request: five pickles, then the storages.

// 0x1950a86a20f9469cfc6c, lowest byte first.
constexpr std::string_view kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr std::int64_t kProtocolVersion = 1001;
constexpr std::uint64_t kFirstWindow = 64 << 10;
// The magic number occurs within this many bytes, in any protocol.
constexpr std::uint64_t kMagicWithin = 64;

// A pickle and the bytes that it refers to.
struct PickleAt {
  std::string bytes;
  pickle::Pickle pickle;
};

// The length of a pickle is known only after it has been read, so the window grows.
std::unique_ptr<PickleAt> read_pickle_at(const ByteSource& source, std::uint64_t offset) {
  const auto rest = source.size() - std::min(offset, source.size());
  auto result = std::make_unique<PickleAt>();
  for (auto window = std::min(rest, kFirstWindow);; window = std::min(rest, 4 * window)) {
    result->bytes = source.read_text(offset, window);
    try {
      result->pickle = pickle::read_pickle(result->bytes, is_in_checkpoints);
      return result;
    } catch (const pickle::CutShort&) {
      if (window == rest) throw;
    }
  }
}

Value plain_value(const PickleAt& at) { return unpickle(at.pickle, no_storages); }

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

using Extents = std::unordered_map<std::string, Extent>;

class LegacyStorages {
 public:
  LegacyStorages(const ByteSource& source, at::Device device, Extents extents)
      : source_(source), device_(device), extents_(std::move(extents)) {}

  c10::Storage load(const StorageRecord& wanted) {
    const auto whole = root(wanted);
    if (wanted.view_key.empty()) return whole;
    const auto known = loaded_.find(wanted.view_key);
    if (known != loaded_.end()) return known->second;
    if (wanted.view_offset > whole.nbytes() || wanted.view_bytes > whole.nbytes() - wanted.view_offset)
      throw_error<CheckpointError>("{}: a view of storage {} reaches beyond it", source_.name(), wanted.key);
    return loaded_.emplace(wanted.view_key, part(whole, wanted)).first->second;
  }

 private:
  static c10::Storage part(const c10::Storage& whole, const StorageRecord& wanted) {
    if (whole.device().is_meta()) return meta_storage(wanted.view_bytes);
    auto* data = static_cast<char*>(whole.mutable_data()) + wanted.view_offset;
    return at::from_blob(
               data, {static_cast<std::int64_t>(wanted.view_bytes)}, [whole](void*) {},
               at::TensorOptions().dtype(at::kByte).device(whole.device()))
        .storage();
  }

  c10::Storage root(const StorageRecord& wanted) {
    const auto known = loaded_.find(wanted.key);
    if (known != loaded_.end()) return known->second;
    const auto extent = extents_.find(wanted.key);
    if (extent == extents_.end() || extent->second.bytes < wanted.bytes)
      throw_error<CheckpointError>("{}: the data of storage {} is missing or cut short", source_.name(),
                                   wanted.key);
    const auto [offset, bytes] = extent->second;
    auto made =
        device_.is_meta() ? meta_storage(bytes) : place_storage(source_.storage(offset, bytes), device_);
    return loaded_.emplace(wanted.key, std::move(made)).first->second;
  }

  const ByteSource& source_;
  at::Device device_;
  Extents extents_;
  std::unordered_map<std::string, c10::Storage> loaded_;
};

Extents find_extents(const ByteSource& source, std::uint64_t offset, const Value& keys,
                     const pickle::Pickle& pickle) {
  std::unordered_map<std::string, std::uint64_t> element_sizes;
  for (const auto& record : storages_of(pickle)) element_sizes[record.key] = c10::elementSize(record.dtype);
  Extents extents;
  for (const auto& key : keys.as_items()) {
    const auto name = storage_key(key);
    const auto element = element_sizes.find(name);
    if (element == element_sizes.end())
      throw_error<CheckpointError>("{}: storage {} has data but no type", source.name(), name);
    std::int64_t count = 0;
    std::memcpy(&count, source.read_text(offset, sizeof(count)).data(), sizeof(count));
    offset += sizeof(count);
    const auto rest = source.size() - offset;
    if (count < 0 || static_cast<std::uint64_t>(count) > rest / element->second)
      throw_error<CheckpointError>("{}: the data of storage {} is cut short", source.name(), name);
    const auto bytes = static_cast<std::uint64_t>(count) * element->second;
    if (!extents.emplace(name, Extent{.offset = offset, .bytes = bytes}).second)
      throw_error<CheckpointError>("{}: storage {} occurs twice", source.name(), name);
    offset += bytes;
  }
  return extents;
}

[[noreturn]] void refuse_as_foreign(const ByteSource& source) {
  throw_error<CheckpointError>(
      "{}: it is not a file of torch.save: neither a zip file nor one that starts with "
      "PyTorch's magic number",
      source.name());
}

Value load_legacy(const ByteSource& source, const LoadOptions& options) {
  const auto front = source.read_text(0, std::min(source.size(), kMagicWithin));
  if (front.find(kMagic) == std::string::npos) refuse_as_foreign(source);
  const auto magic = read_pickle_at(source, 0);
  const auto& root = magic->pickle[magic->pickle.root];
  if (root.kind != pickle::Kind::big_integer || root.text != kMagic) refuse_as_foreign(source);
  auto offset = magic->pickle.size;
  const auto next = [&] {
    auto read = read_pickle_at(source, offset);
    offset += read->pickle.size;
    return read;
  };
  if (plain_value(*next()).as_int() != kProtocolVersion)
    throw_error<CheckpointError>("{}: it has an unknown protocol version", source.name());
  if (!plain_value(*next())["little_endian"].as_bool()) {
    throw_error<CheckpointError>(
        "{}: it was written on a big-endian machine in the old format; save it again in the zip format",
        source.name());
  }
  const auto contents = next();
  const auto keys = next();
  LegacyStorages storages(source, options.map_location,
                          find_extents(source, offset, plain_value(*keys), contents->pickle));
  return unpickle(contents->pickle, [&](const StorageRecord& wanted) { return storages.load(wanted); });
}

// Very old files are tar archives.
bool looks_like_tar(const ByteSource& source) {
  constexpr std::uint64_t magic_at = 257;
  return source.size() >= 512 && source.read_text(magic_at, 5) == "ustar";
}

Value load_any(const ByteSource& source, const LoadOptions& options) {
  if (ZipReader::looks_like_zip(source)) return load_zip(source, options);
  if (looks_like_tar(source)) {
    throw_error<CheckpointError>(
        "it is a tar archive, as PyTorch wrote them before 2017; load it with Python's "
        "torch.load(weights_only=False) if you trust it, and save it again");
  }
  return load_legacy(source, options);
}

}  // namespace

Value load_source(const ByteSource& source, const LoadOptions& options) {
  require_location(source.name(), options.map_location);
  if (source.size() == 0) throw_error<CheckpointError>("{}: the file is empty", source.name());
  try {
    return with_source(source.name(), [&] { return load_any(source, options); });
  } catch (const std::bad_alloc&) {
    throw_error<CheckpointReadError>("{}: there is not enough memory for it", source.name());
  } catch (const c10::OutOfMemoryError& error) {
    throw_error<CheckpointReadError>("{}: {}", source.name(), error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("{}: {}", source.name(), error.what_without_backtrace());
  }
}

}  // namespace serialize

namespace {

at::Device named_device(const std::string& name) {
  try {
    return at::Device(name);
  } catch (const c10::Error&) {
    throw_error<ArgumentError>(
        "map_location: \"{}\" is not a device; write \"cpu\", \"cuda\", \"cuda:1\" or \"meta\"", name);
  }
}

}  // namespace

MapLocation::MapLocation(const std::string& device) : device_(named_device(device)) {}

Value load(const std::filesystem::path& file, const LoadOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const ErrorFile about(file);
  const PhaseScope phase(Phase::checkpoint);
  return serialize::load_source(
      *serialize::open_file(file, options.mmap && !options.map_location.device().is_meta()), options);
}

Value load_bytes(std::span<const char> bytes, const LoadOptions& options, const std::string& name,
                 std::source_location where) {
  const CallerPlace place(where);
  return serialize::load_source(*serialize::open_bytes(bytes, name), options);
}

void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options,
          std::source_location where) {
  const CallerPlace place(where);
  const ErrorFile about(file);
  const PhaseScope phase(Phase::checkpoint);
  const auto pickled = with_source(file.string(), [&] { return serialize::pickle_value(value); });
  serialize::write_file(pickled, file, options);
}

std::string save_bytes(const Value& value, std::source_location where) {
  const CallerPlace place(where);
  std::string bytes;
  serialize::write_zip(serialize::pickle_value(value), [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

}  // namespace lockstep
