// SPDX-License-Identifier: BSD-3-Clause

#include "base/throw_error.h"
#include "data/download/download.h"

#ifdef LOCKSTEP_WITH_CURL
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <unistd.h>

#include <curl/curl.h>

#include "base/shared_library.h"

namespace lockstep::data {
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

}  // namespace lockstep::data
#else
namespace lockstep::data {

void download_url(const std::string& url, const std::filesystem::path&, const Deadline&,
                  std::chrono::milliseconds) {
  throw_error<DataError>("{}: this build of Lockstep cannot download (LOCKSTEP_WITH_CURL=OFF)", url);
}

}  // namespace lockstep::data
#endif
