// SPDX-License-Identifier: BSD-3-Clause
// Whatever the bytes are, the readers of datasets give a value or a DataError. The first byte chooses the
// reader and its options.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/Functions.h>
#include <zlib.h>

#include <lockstep/base/error.h>
#include <lockstep/data/files.h>
#include <lockstep/data/vision.h>

#include "data/folder_listing.h"

namespace {

using Bytes = std::span<const std::uint8_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

// A file in memory that holds the bytes of the run.
class File {
 public:
  File() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    require(fd_ >= 0);
  }
  const std::filesystem::path& path() const { return path_; }
  void clear() { require(::ftruncate(fd_, 0) == 0 && ::lseek(fd_, 0, SEEK_SET) == 0); }
  void append(Bytes bytes) {
    require(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  int fd_;
  std::filesystem::path path_;
};

void touch(const at::Tensor& tensor) { require(tensor.clone().sizes() == tensor.sizes()); }

void read_csv(const std::filesystem::path& file, int options) {
  constexpr std::array<char, 4> kDelimiters = {',', ';', '\t', ' '};
  const lockstep::data::CsvDataset dataset(file, {.target_classes = options % 2 == 1,
                                                  .delimiter = kDelimiters[options / 4 % 4],
                                                  .header = options / 2 % 2 == 1});
  const auto all = dataset.get_batch(at::arange(dataset.size(), at::kLong));
  require(all.data.size(0) == dataset.size() && all.target.size(0) == dataset.size());
}

void read_index(const std::filesystem::path& file) {
  const auto index = lockstep::data::read_folder_index(file);
  if (!index) return;
  const auto& listing = index->listing;
  std::int64_t sum = index->allow_empty ? 1 : 0;
  for (std::size_t i = 0; i < listing.size(); ++i) {
    sum += listing.target(i) % 2 + static_cast<std::int64_t>(listing.path(i).string().size());
  }
  require(sum > -static_cast<std::int64_t>(listing.size()) - 1);
}

// Mutations do not find the checksum at the end of an index.
void append_checksum(File& file, Bytes body) {
  const auto sum = static_cast<std::uint32_t>(::crc32_z(0, body.data(), body.size()));
  file.append({reinterpret_cast<const std::uint8_t*>(&sum), sizeof sum});
}

void read(File& file, Bytes bytes, int choice) {
  constexpr int kReaders = 6;
  const int options = choice / kReaders;
  file.clear();
  file.append(bytes);
  switch (choice % kReaders) {
    case 0:
      return touch(lockstep::data::load_numpy(file.path()));
    case 1:
      for (const auto& [name, array] : lockstep::data::load_npz(file.path())) touch(array);
      return;
    case 2:
      return read_csv(file.path(), options);
    case 3:
      return touch(lockstep::data::read_idx(file.path()));
    case 4:
      append_checksum(file, bytes);
      [[fallthrough]];
    default:
      return read_index(file.path());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static File file;
  if (size == 0) return 0;
  try {
    read(file, {bytes + 1, size - 1}, bytes[0]);
  } catch (const lockstep::DataError&) {
  } catch (const lockstep::ArgumentError&) {
    // A CSV file without the column of the target, or with no other.
    require(bytes[0] % 6 == 2);
  }
  return 0;
}
