// SPDX-License-Identifier: BSD-3-Clause
#include "byte_counts.h"

#include <fstream>
#include <string>
#include <system_error>

#include <lockstep/base/atomic_file.h>

namespace lockstep::ckpt {
namespace {

namespace fs = std::filesystem;

std::uint64_t size_of(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  return code ? 0 : size;
}

template <typename Choose>
std::uint64_t bytes_in(const fs::path& folder, const Choose& choose) {
  std::uint64_t bytes = 0;
  std::error_code code;
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    if (choose(entry->path())) bytes += size_of(entry->path());
  }
  return bytes;
}

}  // namespace

std::uint64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  std::uint64_t count = 0;
  counters >> name >> count;
  return count;
}

std::uint64_t bytes_written(const fs::path& path) {
  const auto suffix = AtomicFileOptions().suffix;
  auto part = path;
  part += suffix;
  return size_of(part) + bytes_in(path, [&](const fs::path& file) { return file.extension() == suffix; });
}

std::uint64_t bytes_at(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return size_of(path);
  return bytes_in(path, [](const fs::path&) { return true; });
}

}  // namespace lockstep::ckpt
