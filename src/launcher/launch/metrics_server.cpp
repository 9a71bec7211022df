// SPDX-License-Identifier: BSD-3-Clause
#include "launch/metrics_server.h"

#ifdef LOCKSTEP_WITH_MICROHTTPD

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <microhttpd.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <strings.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/limits.h"
#include "base/shared_library.h"
#include "base/sockets.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kConnectionLimit{5};
constexpr unsigned kConnections = 16;
constexpr std::size_t kRequestBytes = std::size_t{16} * 1024;
constexpr int kBacklog = 16;

// The functions of libmicrohttpd that we call.
struct Http {
  SharedLibrary library{"libmicrohttpd", {"libmicrohttpd.so.12"}, "libmicrohttpd12"};
  decltype(&::MHD_start_daemon) start_daemon = library["MHD_start_daemon"];
  decltype(&::MHD_stop_daemon) stop_daemon = library["MHD_stop_daemon"];
  decltype(&::MHD_run) run = library["MHD_run"];
  decltype(&::MHD_get_timeout) get_timeout = library["MHD_get_timeout"];
  decltype(&::MHD_get_daemon_info) get_daemon_info = library["MHD_get_daemon_info"];
  decltype(&::MHD_get_connection_info) get_connection_info = library["MHD_get_connection_info"];
  decltype(&::MHD_lookup_connection_value) lookup_connection_value = library["MHD_lookup_connection_value"];
  decltype(&::MHD_create_response_from_buffer) create_response = library["MHD_create_response_from_buffer"];
  decltype(&::MHD_add_response_header) add_response_header = library["MHD_add_response_header"];
  decltype(&::MHD_queue_response) queue_response = library["MHD_queue_response"];
  decltype(&::MHD_destroy_response) destroy_response = library["MHD_destroy_response"];
};

const Http& http() {
  static const Http loaded;
  return loaded;
}

SocketAddress address_to_bind(const MetricsOptions& options) {
  const auto found = resolve_now(options.bind);
  if (found.addresses.empty()) {
    throw_error<ArgumentError>("--metrics-bind {}: {}; use an address of this host", options.bind,
                               found.error);
  }
  const auto& address = found.addresses.front();
  if (!address.is_loopback() && options.token.empty()) {
    throw_error<ArgumentError>(
        "--metrics-bind {}: other hosts can connect there, so requests need a token; add "
        "--metrics-token-file FILE",
        options.bind);
  }
  return address;
}

struct Reply {
  unsigned status = MHD_HTTP_OK;
  std::string body{};
  std::map<const char*, const char*> headers{};
};

bool has_token(const Secret& token, const char* authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  return authorization != nullptr && ::strncasecmp(authorization, kScheme.data(), kScheme.size()) == 0 &&
         token.is(std::string_view(authorization).substr(kScheme.size()));
}

Reply reply_to(const MetricsOptions& options, std::string_view url, std::string_view method,
               const char* authorization) {
  if (!options.token.empty() && !has_token(options.token, authorization)) {
    return {
        MHD_HTTP_UNAUTHORIZED, "the bearer token is missing or wrong\n", {{"WWW-Authenticate", "Bearer"}}};
  }
  if (url != "/metrics") return {MHD_HTTP_NOT_FOUND, "only /metrics is here\n"};
  if (method != "GET") return {MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is allowed\n", {{"Allow", "GET"}}};
  try {
    return {.body = options.text()};
  } catch (const std::exception& error) {
    return {MHD_HTTP_INTERNAL_SERVER_ERROR, exception_text(error) + "\n"};
  }
}

MHD_Result send(MHD_Connection* connection, const Reply& reply) {
  const std::unique_ptr<MHD_Response, decltype(http().destroy_response)> response(
      http().create_response(reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY),
      http().destroy_response);
  if (!response) return MHD_NO;
  http().add_response_header(response.get(), "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  http().add_response_header(response.get(), "Connection", "close");
  for (const auto& [name, value] : reply.headers) http().add_response_header(response.get(), name, value);
  return http().queue_response(connection, reply.status, response.get());
}

// An exception must not reach the C library; MHD_NO closes the connection.
MHD_Result on_request(void* options, MHD_Connection* connection, const char* url, const char* method,
                      const char* /*version*/, const char* /*body*/, std::size_t* /*body_size*/,
                      void** /*state*/) {
  try {
    const char* const authorization =
        http().lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    return send(connection,
                reply_to(*static_cast<const MetricsOptions*>(options), url, method, authorization));
  } catch (...) {
    return MHD_NO;
  }
}

// The library's own limit of time is one for silence: a client that sends a byte now and then would stay.
class Server {
 public:
  // Takes `listener`.
  Server(const MetricsOptions& options, int listener)
      : daemon_(http().start_daemon(
            MHD_USE_EPOLL, 0, nullptr, nullptr, &on_request, const_cast<MetricsOptions*>(&options),
            MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT, kConnections,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, kRequestBytes, MHD_OPTION_NOTIFY_CONNECTION,
            &Server::on_connection, this, MHD_OPTION_END)) {
    if (daemon_ == nullptr) throw_error<LaunchError>("libmicrohttpd: {}", errno_text(errno));
  }
  ~Server() { http().stop_daemon(daemon_); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void serve(int stop) {
    const int events_of_http = http().get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    std::array<pollfd, 2> events{pollfd{.fd = stop, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = events_of_http, .events = POLLIN, .revents = 0}};
    while (events[0].revents == 0) {
      ::poll(events.data(), events.size(), poll_timeout());
      // At the limit the library does not listen. After a connection has closed it listens only from its next
      // run on, for which no event asks.
      do {
        has_closed_ = false;
        http().run(daemon_);
      } while (has_closed_);
      end_slow_connections();
    }
  }

 private:
  struct Limit {
    int socket = -1;
    Deadline deadline{kConnectionLimit};
    bool is_over = false;
  };

  static void on_connection(void* server, MHD_Connection* connection, void** /*context*/,
                            MHD_ConnectionNotificationCode code) {
    auto& self = *static_cast<Server*>(server);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      self.limits_.erase(connection);
      self.has_closed_ = true;
    } else {
      const auto* const info = http().get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
      self.limits_.emplace(connection, Limit{.socket = info->connect_fd});
    }
  }

  // The library sees the end of the stream and closes the connection.
  void end_slow_connections() {
    for (auto& [connection, limit] : limits_) {
      if (limit.is_over || !limit.deadline.expired()) continue;
      ::shutdown(limit.socket, SHUT_RDWR);
      limit.is_over = true;
    }
  }

  int poll_timeout() const {
    std::int64_t least = -1;
    const auto shorten = [&](std::int64_t limit) { least = least < 0 ? limit : std::min(least, limit); };
    MHD_UNSIGNED_LONG_LONG of_http = 0;
    if (http().get_timeout(daemon_, &of_http) == MHD_YES)
      shorten(static_cast<std::int64_t>(std::min<MHD_UNSIGNED_LONG_LONG>(of_http, 60'000)));
    for (const auto& [connection, limit] : limits_) {
      if (limit.is_over) continue;
      shorten(limit.deadline.remaining().count() + 1);
    }
    return static_cast<int>(least);
  }

  std::map<MHD_Connection*, Limit> limits_;  // of the open connections; outlives the daemon
  bool has_closed_ = false;                  // a connection, in this run of the library
  MHD_Daemon* daemon_;
};

}  // namespace

MetricsServer::MetricsServer(const MetricsOptions& options) : options_(options) {
  (void)http();
  const auto address = address_to_bind(options);
  Endpoint endpoint{.host = address.text(), .port = options.port};
  listener_ = bound_socket(options.port, {.address = address, .flags = SOCK_NONBLOCK});
  if (!listener_ || ::listen(listener_.get(), kBacklog) != 0) {
    throw_error<LaunchError>(
        "metrics cannot be served at {}: {}; choose another --metrics-port, or 0 for a free one",
        to_text(endpoint), errno_text(errno));
  }
  endpoint.port = bound_port(listener_.get());
  log(LogLevel::info, fmt::format("metrics of {}: http://{}/metrics", host_name(), to_text(endpoint)));
}

void MetricsServer::serve(int stop) {
  try {
    Server(options_, listener_.release()).serve(stop);
  } catch (const std::exception& error) {
    log(LogLevel::warning, fmt::format("the metrics are not served: {}", exception_text(error)));
  }
}

}  // namespace lockstep::launch

#else

#include <lockstep/base/error.h>

namespace lockstep::launch {

MetricsServer::MetricsServer(const MetricsOptions& options) : options_(options) {
  throw Error(
      "--metrics-port: this Lockstep was built without libmicrohttpd; install libmicrohttpd-dev and build it again");
}

void MetricsServer::serve(int /*stop*/) {}

}  // namespace lockstep::launch

#endif
