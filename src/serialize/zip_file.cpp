// SPDX-License-Identifier: BSD-3-Clause
#include <unordered_map>

#include <ATen/Functions.h>

#include "serialize/errors.h"
#include "serialize/storage.h"
#include "serialize/torch_reader.h"
#include "serialize/unpickler.h"
#include "serialize/zip_reader.h"

namespace lockstep::serialize {
namespace {

constexpr std::string_view kPickle = "data.pkl";

// The folder inside the archive that everything lies in, with its slash.
std::string folder_of(const ZipReader& zip) {
  for (const auto& [name, record] : zip.records()) {
    const auto slash = name.find('/');
    if (slash != std::string::npos && std::string_view(name).substr(slash + 1) == kPickle)
      return name.substr(0, slash + 1);
  }
  throw_error("{}: it is a zip file, but not one of torch.save: it has no {}", zip.source().name(), kPickle);
}

class ZipStorages : public StorageSource {
 public:
  ZipStorages(const ZipReader& zip, std::string folder, const LoadOptions& options)
      : zip_(zip), folder_(std::move(folder)), options_(options) {
    if (const auto* record = zip.find(folder_ + "byteorder")) big_endian_ = is_big_endian(*record);
  }

  c10::Storage load(const StorageRecord& wanted) override {
    const auto known = loaded_.find(wanted.key);
    if (known != loaded_.end()) {
      check_size(wanted, known->second.nbytes());
      return known->second;
    }
    auto made = read(wanted);
    loaded_.emplace(wanted.key, made);
    return made;
  }

 private:
  bool is_big_endian(const ZipRecord& record) const {
    const auto order = record.size < 16 ? zip_.read(record) : "";
    if (order == "little" || order == "big") return order == "big";
    throw_error("{}: its byte order is unknown", zip_.source().name());
  }

  void check_size(const StorageRecord& wanted, std::uint64_t there) const {
    if (wanted.bytes <= there) return;
    throw_error("{}: storage {} should have {} bytes, but has {}", zip_.source().name(), wanted.key,
                wanted.bytes, there);
  }

  c10::Storage read(const StorageRecord& wanted) const {
    const auto* record = zip_.find(folder_ + "data/" + wanted.key);
    if (record == nullptr)
      throw_error("{}: the data of storage {} is missing", zip_.source().name(), wanted.key);
    check_size(wanted, record->size);
    if (options_.map_location.is_meta()) return meta_storage(wanted.bytes);
    auto storage = zip_.source().storage(zip_.offset(*record), record->size);
    if (big_endian_) swap_byte_order(storage, wanted.dtype);
    return place_storage(std::move(storage), options_.map_location);
  }

  const ZipReader& zip_;
  std::string folder_;
  LoadOptions options_;
  bool big_endian_ = false;
  std::unordered_map<std::string, c10::Storage> loaded_;
};

}  // namespace

Value load_zip(const ByteSource& source, const LoadOptions& options) {
  const ZipReader zip(source);
  if (options.verify) zip.verify_checksums();
  const auto folder = folder_of(zip);
  if (zip.find(folder + "constants.pkl") != nullptr) {
    throw_error(
        "{}: it is a TorchScript archive, written by C++'s torch::save or by torch.jit.save; "
        "read it with torch::load, "
        "then write it with lockstep::save(lockstep::state_dict(*module), ...)",
        source.name());
  }
  const auto& record = *zip.find(folder + std::string(kPickle));
  const auto text = zip.read(record);
  ZipStorages storages(zip, folder, options);
  return unpickle(pickle::read_pickle(text, names_in_checkpoints()), storages);
}

}  // namespace lockstep::serialize
