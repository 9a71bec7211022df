// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// Index caches of datasets: a magic text, the parts in order, and zlib's CRC-32 of all before it. The parts
// are numbers, texts, and structs with a static for_each_part(self, visitor), or vectors of these.
namespace lockstep::data {

class IndexOutput {
 public:
  void append(const void* data, std::size_t bytes) { text_.append(static_cast<const char*>(data), bytes); }
  template <typename T>
  void put(const T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      append(&value, sizeof value);
    } else {
      T::for_each_part(value, [this](const auto& part) { this->put(part); });
    }
  }
  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    append(text.data(), text.size());
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
  const std::string& text() const { return text_; }

 private:
  std::string text_{};
};

struct DamagedIndex : std::runtime_error {
  DamagedIndex() : std::runtime_error("damaged index") {}
};

class IndexInput {
 public:
  explicit IndexInput(std::string_view text) : left_(text) {}

  template <typename T>
  void get(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      take(&value, sizeof value);
    } else {
      T::for_each_part(value, [this](auto& part) { this->get(part); });
    }
  }
  void get(bool& value) {
    std::uint8_t byte = 0;
    get(byte);
    if (byte > 1) throw DamagedIndex();
    value = byte == 1;
  }
  void get(std::string& text) {
    text.resize(count(1));
    take(text.data(), text.size());
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
  bool at_end() const { return left_.empty(); }

 private:
  std::size_t count(std::size_t element_bytes) {
    std::uint64_t value = 0;
    get(value);
    if (value > left_.size() / element_bytes) throw DamagedIndex();
    return value;
  }
  void take(void* out, std::size_t bytes) {
    if (left_.size() < bytes) throw DamagedIndex();
    if (bytes > 0) std::memcpy(out, left_.data(), bytes);
    left_.remove_prefix(bytes);
  }

  std::string_view left_;
};

// The parts of an index file; nullopt when it is missing, damaged or has another magic text.
std::optional<std::string> read_index_parts(const std::filesystem::path& file, std::string_view magic);
// Adds the checksum to the magic text and the parts. Warns, naming the dataset, when the file cannot be
// written.
void write_index_parts(IndexOutput output, const std::filesystem::path& file, std::string_view dataset);

// nullopt as read_index_parts(), and when check(index) throws DamagedIndex.
template <typename Index, typename Check>
std::optional<Index> read_index(const std::filesystem::path& file, std::string_view magic, Check check) {
  const auto parts = read_index_parts(file, magic);
  if (!parts) return std::nullopt;
  try {
    IndexInput input(*parts);
    Index index;
    input.get(index);
    if (!input.at_end()) throw DamagedIndex();
    check(index);
    return index;
  } catch (const DamagedIndex&) {
    return std::nullopt;
  }
}

template <typename Index>
void write_index(const Index& index, const std::filesystem::path& file, std::string_view magic,
                 std::string_view dataset) {
  IndexOutput output;
  output.append(magic.data(), magic.size());
  output.put(index);
  write_index_parts(std::move(output), file, dataset);
}

// Whether a file or folder whose modification time is this one, in nanoseconds, may change without a new one.
bool may_change_unnoticed(std::int64_t modified);

}  // namespace lockstep::data
