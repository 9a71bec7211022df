// SPDX-License-Identifier: BSD-3-Clause
#include "data/http.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include <curl/curl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::data {
namespace {

// Slower than this for this long counts as stalled.
constexpr long kStalledBytesPerSecond = 1'000;
constexpr long kStalledSeconds = 20;
constexpr long kMostRedirects = 10;

using Handle = std::unique_ptr<CURL, decltype(&::curl_easy_cleanup)>;

struct Transfer {
  std::vector<std::uint8_t> body{};
  Progress* progress = nullptr;
};

extern "C" std::size_t lockstep_on_body(char* bytes, std::size_t size, std::size_t count, void* context) {
  auto& body = static_cast<Transfer*>(context)->body;
  try {
    body.insert(body.end(), bytes, bytes + size * count);
  } catch (const std::bad_alloc&) {
    return 0;  // an exception must not cross libcurl; this makes the transfer fail
  }
  return size * count;
}

extern "C" int lockstep_on_progress(void* context, curl_off_t total, curl_off_t done, curl_off_t,
                                    curl_off_t) {
  static_cast<Transfer*>(context)->progress->update(static_cast<std::uint64_t>(done),
                                                    static_cast<std::uint64_t>(total));
  return 0;
}

Handle new_handle() {
  static std::once_flag once;
  std::call_once(once, [] { ::curl_global_init(CURL_GLOBAL_DEFAULT); });
  Handle handle(::curl_easy_init(), &::curl_easy_cleanup);
  if (!handle) throw DataError("libcurl could not be started");
  return handle;
}

void set_up(CURL* curl, const std::string& url, Transfer& transfer) {
  ::curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https,file");
  ::curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  ::curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMostRedirects);
  ::curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kStalledBytesPerSecond);
  ::curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  ::curl_easy_setopt(curl, CURLOPT_USERAGENT, "lockstep");
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &lockstep_on_body);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  ::curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &lockstep_on_progress);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
}

}  // namespace

std::vector<std::uint8_t> fetch_url(const std::string& url, const Deadline& deadline,
                                    std::chrono::milliseconds connect_timeout, Progress& progress) {
  const Handle curl = new_handle();
  std::array<char, CURL_ERROR_SIZE> detail{};
  Transfer transfer{.progress = &progress};
  set_up(curl.get(), url, transfer);
  ::curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, detail.data());
  ::curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect_timeout.count()));
  // Zero would mean no limit at all.
  ::curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS,
                     std::max(1L, static_cast<long>(deadline.remaining().count())));
  const CURLcode code = ::curl_easy_perform(curl.get());
  if (code != CURLE_OK) {
    throw DataError(
        fmt::format("{}: {}", url, detail[0] != '\0' ? detail.data() : ::curl_easy_strerror(code)));
  }
  return std::move(transfer.body);
}

}  // namespace lockstep::data
