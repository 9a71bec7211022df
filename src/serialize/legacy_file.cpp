// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include <ATen/Functions.h>

#include "serialize/errors.h"
#include "serialize/storage.h"
#include "serialize/torch_reader.h"
#include "serialize/unpickler.h"

namespace lockstep::serialize {
namespace {

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
      result->pickle = pickle::read_pickle(result->bytes, names_in_checkpoints());
      return result;
    } catch (const pickle::CutShort&) {
      if (window == rest) throw;
    }
  }
}

Value plain_value(const PickleAt& at) {
  NoStorages none;
  return unpickle(at.pickle, none);
}

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class LegacyStorages : public StorageSource {
 public:
  LegacyStorages(const ByteSource& source, const LoadOptions& options,
                 std::unordered_map<std::string, Extent> extents)
      : source_(source), options_(options), extents_(std::move(extents)) {}

  c10::Storage load(const StorageRecord& wanted) override {
    const auto whole = root(wanted);
    if (wanted.view_key.empty()) return whole;
    const auto known = loaded_.find(wanted.view_key);
    if (known != loaded_.end()) return known->second;
    if (wanted.view_offset > whole.nbytes() || wanted.view_bytes > whole.nbytes() - wanted.view_offset)
      throw_error("{}: a view of storage {} reaches beyond it", source_.name(), wanted.key);
    auto made = part(whole, wanted);
    loaded_.emplace(wanted.view_key, made);
    return made;
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
      throw_error("{}: the data of storage {} is missing or cut short", source_.name(), wanted.key);
    auto made = options_.map_location.is_meta()
                    ? meta_storage(extent->second.bytes)
                    : place_storage(source_.storage(extent->second.offset, extent->second.bytes),
                                    options_.map_location);
    loaded_.emplace(wanted.key, made);
    return made;
  }

  const ByteSource& source_;
  LoadOptions options_;
  std::unordered_map<std::string, Extent> extents_;
  std::unordered_map<std::string, c10::Storage> loaded_;
};

std::string key_text(const Value& key) {
  return key.is<std::string>() ? key.as_string() : fmt::format("{}", key.as_int());
}

std::unordered_map<std::string, Extent> find_extents(const ByteSource& source, std::uint64_t offset,
                                                     const Value& keys, const pickle::Pickle& pickle) {
  std::unordered_map<std::string, std::uint64_t> element_sizes;
  for (const auto& record : storages_of(pickle)) element_sizes[record.key] = c10::elementSize(record.dtype);
  std::unordered_map<std::string, Extent> extents;
  for (const auto& key : keys.as_items()) {
    const auto name = key_text(key);
    const auto element = element_sizes.find(name);
    if (element == element_sizes.end())
      throw_error("{}: storage {} has data but no type", source.name(), name);
    std::int64_t count = 0;
    std::memcpy(&count, source.read_text(offset, sizeof(count)).data(), sizeof(count));
    offset += sizeof(count);
    const auto rest = source.size() - offset;
    if (count < 0 || static_cast<std::uint64_t>(count) > rest / element->second)
      throw_error("{}: the data of storage {} is cut short", source.name(), name);
    const auto bytes = static_cast<std::uint64_t>(count) * element->second;
    if (!extents.emplace(name, Extent{.offset = offset, .bytes = bytes}).second)
      throw_error("{}: storage {} occurs twice", source.name(), name);
    offset += bytes;
  }
  return extents;
}

[[noreturn]] void refuse_as_foreign(const ByteSource& source) {
  throw_error(
      "{}: it is not a file of torch.save: neither a zip file nor one that starts with "
      "PyTorch's magic number",
      source.name());
}

}  // namespace

Value load_legacy(const ByteSource& source, const LoadOptions& options) {
  const auto front = source.read_text(0, std::min(source.size(), kMagicWithin));
  if (front.find(kMagic) == std::string::npos) refuse_as_foreign(source);
  const auto magic = read_pickle_at(source, 0);
  const auto& root = magic->pickle[magic->pickle.root];
  if (root.kind != pickle::Kind::big_integer || root.text != kMagic) refuse_as_foreign(source);
  auto offset = magic->pickle.size;
  const auto version = read_pickle_at(source, offset);
  offset += version->pickle.size;
  if (plain_value(*version).as_int() != kProtocolVersion)
    throw_error("{}: it has an unknown protocol version", source.name());
  const auto system = read_pickle_at(source, offset);
  offset += system->pickle.size;
  if (!plain_value(*system)["little_endian"].as_bool()) {
    throw_error(
        "{}: it was written on a big-endian machine in the old format; save it again in the zip format",
        source.name());
  }
  const auto contents = read_pickle_at(source, offset);
  offset += contents->pickle.size;
  const auto keys = read_pickle_at(source, offset);
  offset += keys->pickle.size;
  LegacyStorages storages(source, options,
                          find_extents(source, offset, plain_value(*keys), contents->pickle));
  return unpickle(contents->pickle, storages);
}

}  // namespace lockstep::serialize
