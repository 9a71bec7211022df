// SPDX-License-Identifier: BSD-3-Clause
// The index cache of a DatasetFolder: a magic text, the parts in order, and zlib's CRC-32 of all before it.
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <unistd.h>

#include <fmt/format.h>
#include <zlib.h>

#include <lockstep/base/log.h>

#include "base/atomic_file.h"
#include "base/host.h"
#include "data/folder_listing.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kIndexMagic = "lockstep folder index 1\n";

class Output {
 public:
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    append(&value, sizeof value);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    put(std::uint64_t{values.size()});
    if constexpr (std::is_trivially_copyable_v<T>) {
      append(values.data(), values.size() * sizeof(T));
    } else {
      for (const auto& value : values) put(value);
    }
  }
  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    append(text.data(), text.size());
  }
  void put(const FolderTime& time) {
    put(time.path);
    put(time.nanoseconds);
  }
  void put(const FolderListing::Folder& folder) {
    put(folder.path);
    put(folder.target);
  }
  void append(const void* data, std::size_t bytes) { text_.append(static_cast<const char*>(data), bytes); }
  const std::string& text() const { return text_; }

 private:
  std::string text_{};
};

struct Damaged : std::runtime_error {
  Damaged() : std::runtime_error("damaged index") {}
};

class Input {
 public:
  explicit Input(std::string_view text) : left_(text) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    take(&value, sizeof value);
  }
  void get(bool& value) {
    std::uint8_t byte = 0;
    get(byte);
    if (byte > 1) throw Damaged();
    value = byte == 1;
  }
  template <typename T>
  void get(std::vector<T>& values) {
    // An element takes one byte at least.
    values.resize(count(std::is_trivially_copyable_v<T> ? sizeof(T) : 1));
    if constexpr (std::is_trivially_copyable_v<T>) {
      take(values.data(), values.size() * sizeof(T));
    } else {
      for (auto& value : values) get(value);
    }
  }
  void get(std::string& text) {
    text.resize(count(1));
    take(text.data(), text.size());
  }
  void get(FolderTime& time) {
    get(time.path);
    get(time.nanoseconds);
  }
  void get(FolderListing::Folder& folder) {
    get(folder.path);
    get(folder.target);
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::size_t count(std::size_t element_bytes) {
    std::uint64_t value = 0;
    get(value);
    if (value > left_.size() / element_bytes) throw Damaged();
    return value;
  }
  void take(void* out, std::size_t bytes) {
    if (left_.size() < bytes) throw Damaged();
    if (bytes > 0) std::memcpy(out, left_.data(), bytes);
    left_.remove_prefix(bytes);
  }

  std::string_view left_;
};

// Visits the parts in the order of the file.
template <typename Index, typename Part>
void for_each_part(Index& index, Part&& part) {
  part(index.extensions);
  part(index.allow_empty);
  part(index.times);
  part(index.listing.classes.classes);
  part(index.listing.folders);
  part(index.listing.names);
  part(index.listing.name_ends);
  part(index.listing.folder_ids);
}

std::uint32_t checksum(std::string_view text) {
  auto sum = ::crc32_z(0, nullptr, 0);
  return static_cast<std::uint32_t>(::crc32_z(sum, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

void check_numbers(const FolderListing& listing) {
  if (listing.name_ends.size() != listing.folder_ids.size()) throw Damaged();
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < listing.size(); ++i) {
    if (listing.name_ends[i] < begin || listing.name_ends[i] > listing.names.size()) throw Damaged();
    if (listing.folder_ids[i] >= listing.folders.size()) throw Damaged();
    begin = listing.name_ends[i];
  }
}

std::string contents_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const auto bytes = stream.tellg();
  if (!stream || bytes < 0) return {};
  std::string text(static_cast<std::size_t>(bytes), '\0');
  stream.seekg(0);
  stream.read(text.data(), bytes);
  return stream ? text : std::string();
}

FolderIndex parse(std::string_view text) {
  Input input(text);
  FolderIndex index;
  for_each_part(index, [&](auto& part) { input.get(part); });
  if (!input.at_end()) throw Damaged();
  check_numbers(index.listing);
  auto& classes = index.listing.classes;
  for (const auto& name : classes.classes) {
    classes.class_to_idx.emplace(name, static_cast<std::int64_t>(classes.class_to_idx.size()));
  }
  return index;
}

}  // namespace

std::optional<FolderIndex> read_folder_index(const std::filesystem::path& file) {
  const auto text = contents_of(file);
  std::uint32_t sum = 0;
  if (!text.starts_with(kIndexMagic) || text.size() < kIndexMagic.size() + sizeof sum) return std::nullopt;
  const auto body = std::string_view(text).substr(0, text.size() - sizeof sum);
  std::memcpy(&sum, text.data() + body.size(), sizeof sum);
  if (checksum(body) != sum) return std::nullopt;
  try {
    return parse(body.substr(kIndexMagic.size()));
  } catch (const Damaged&) {
    return std::nullopt;
  }
}

void write_folder_index(const FolderIndex& index, const std::filesystem::path& file) {
  Output output;
  output.append(kIndexMagic.data(), kIndexMagic.size());
  for_each_part(index, [&](const auto& part) { output.put(part); });
  output.put(checksum(output.text()));
  try {
    // Every rank may write the same index at the same time.
    AtomicFile out(file, {.suffix = fmt::format(".{}-{}.part", host_name(), ::getpid()), .sync = false});
    out.write(std::as_bytes(std::span(output.text())));
    out.commit();
  } catch (const std::system_error& error) {
    log(LogLevel::warning,
        fmt::format("DatasetFolder: the index cache {} cannot be written: {}", file.string(), error.what()));
  }
}

}  // namespace lockstep::data
