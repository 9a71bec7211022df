// SPDX-License-Identifier: BSD-3-Clause
#include "launch/launch_view.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <fcntl.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "launch/coordinator_server.h"
#include "launch/looks.h"
#include "launch/view_socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// The coordinator gives each host Looks::kLimit.
constexpr milliseconds kAskLimit = Looks::kLimit + milliseconds(1'000);
constexpr milliseconds kToolLimit{10'000};  // to read what is said
constexpr std::size_t kMostTools = 8;
constexpr std::size_t kMostForTool = std::size_t{64} * 1024 * 1024;  // for a tool that does not read

}  // namespace

LaunchView::LaunchView(const LaunchOptions& options, uid_t user)
    : options_(options), user_(user), listener_(listen_for_views()) {
  if (!listener_) {
    log(LogLevel::warning,
        fmt::format("`lockstep top --hosts` cannot ask this launcher: local socket: {}", errno_text(errno)));
  }
  auto pipe = make_pipe(O_NONBLOCK);
  if (!pipe.read)
    throw_error<LaunchError>("the ranks could not be started: {}", call_error_text("pipe2", errno));
  looks_out_ = std::move(pipe.read);
  looks_in_ = std::move(pipe.write);
}

void LaunchView::close() {
  listener_.reset();
  looks_out_.reset();
}

void LaunchView::serve(int stop) {
  pollfd end{.fd = stop, .events = POLLIN, .revents = 0};
  while (::poll(&end, 1, 0) <= 0) step(stop);
}

void LaunchView::step(int stop) {
  const int listener = asked_.size() < kMostTools ? listener_.get() : -1;
  std::vector<pollfd> events;
  for (const int fd : {stop, listener, looks_out_.get()})
    events.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  for (const auto& asked : asked_) {
    events.push_back({.fd = asked.tool.fd(), .events = asked.tool.events(), .revents = 0});
    if (asked.coordinator) asked.coordinator->watch(events);
  }
  for (const auto& answer : answers_) answer.coordinator->watch(events);
  ::poll(events.data(), events.size(), poll_timeout());
  accept_tools();
  read_looks();
  std::erase_if(asked_, [&](Asked& asked) { return !advance(asked); });
  std::erase_if(answers_, [&](Answer& answer) { return !advance(answer); });
}

int LaunchView::poll_timeout() const {
  milliseconds least(-1);
  const auto shorten = [&](milliseconds limit) {
    least = least.count() < 0 ? limit : std::min(least, limit);
  };
  const auto shorten_by = [&](const auto& each) {
    shorten(each.limit.remaining() + milliseconds(1));
    const auto wait = each.coordinator ? each.coordinator->poll_timeout() : std::nullopt;
    if (wait) shorten(*wait);
  };
  for (const auto& asked : asked_) shorten_by(asked);
  for (const auto& answer : answers_) shorten_by(answer);
  return static_cast<int>(least.count());
}

// A coordinator that does not answer is no reason to wait as long as for nodes that join.
std::unique_ptr<CoordinatorClient> LaunchView::connect(Hello hello) const {
  auto nodes = *options_.nodes;
  nodes.join_timeout = Looks::kLimit;
  hello.node = {.shared = shared_options(options_), .host = host_name()};
  return std::make_unique<TcpCoordinatorClient>(nodes, std::move(hello), "");
}

void LaunchView::accept_tools() {
  if (!listener_ || asked_.size() >= kMostTools) return;
  auto socket = accept_view(listener_.get(), user_);
  if (!socket) return;
  asked_.push_back({.tool = LineConnection(std::move(socket)), .limit = Deadline(kAskLimit)});
  auto& asked = asked_.back();
  asked.tool.set_max_line(LineConnection::kMaxLineOfStranger);
  if (options_.nodes->secret.empty()) {
    return end(asked,
               "this run has no secret, so the launchers show their ranks to nobody on another host; give "
               "all nodes the same LOCKSTEP_SECRET");
  }
  try {
    asked.coordinator = connect({.purpose = Purpose::look});
  } catch (const std::exception& error) {
    end(asked, exception_text(error));
  }
}

std::vector<Seen> LaunchView::own_parts(int first_rank, int ranks) const {
  std::vector<Seen> parts;
  try {
    for (auto& text : options_.snapshot(first_rank, ranks)) parts.push_back({.text = std::move(text)});
  } catch (const std::exception& error) {
    return {{.name = host_name(), .problem = exception_text(error), .parts = 1}};
  }
  if (parts.empty()) return {{.name = host_name(), .problem = "its ranks publish nothing yet", .parts = 1}};
  for (auto& part : parts) {
    part.name = host_name();
    part.parts = static_cast<int>(parts.size());
  }
  return parts;
}

// Nobody waits any more for the first ones that came while this process was stopped.
void LaunchView::read_looks() {
  std::deque<Look> looks;
  for (Look look; ::read(looks_out_.get(), &look, sizeof(look)) == sizeof(look);) {
    looks.push_back(look);
    if (looks.size() > Looks::kMost) looks.pop_front();
  }
  for (const auto& look : looks) {
    try {
      answers_.push_back(
          {.coordinator = connect({.purpose = Purpose::answer, .look = look.id, .asked = look.host}),
           .parts = own_parts(look.first_rank, look.ranks),
           .limit = Deadline(kToolLimit)});
    } catch (const std::exception& error) {
      log(LogLevel::warning, fmt::format("`lockstep top --hosts` gets no answer: {}", exception_text(error)));
    }
  }
}

// What can be said without the coordinator, or what is missing.
void LaunchView::end(Asked& asked, const std::string& problem) const {
  constexpr int kHere = -2;  // before all others
  constexpr int kElsewhere = -1;
  asked.coordinator.reset();
  asked.limit = Deadline(kToolLimit);
  if (!asked.has_seen && options_.snapshot) {
    for (auto& part : own_parts(0, 0)) {
      part.host = kHere;
      asked.tool.send(encode(ToNode(std::move(part))));
    }
  }
  asked.tool.send(encode(ToNode(Seen{.host = kElsewhere, .name = "other hosts", .problem = problem})));
  asked.tool.send(encode(ToNode(End{})));
}

// False: the tool has got all, or has gone.
bool LaunchView::advance(Asked& asked) const {
  asked.tool.advance();
  if (!asked.tool.broken().empty() || asked.tool.queued() > kMostForTool) return false;
  if (!asked.coordinator) return !asked.limit.expired();  // the tool closes the connection
  try {
    asked.coordinator->advance();
    if (!pass_on(asked) && asked.limit.expired()) {
      end(asked, fmt::format("the launcher at {}, which coordinates the nodes, did not answer within {} s: "
                             "its processes may be stopped",
                             to_text(options_.nodes->endpoint), kAskLimit.count() / 1000));
    }
  } catch (const std::exception& error) {
    end(asked, exception_text(error));
  }
  return true;
}

// What the coordinator sends. True: it was the last.
bool LaunchView::pass_on(Asked& asked) const {
  while (auto message = asked.coordinator->receive()) {
    if (const auto* const refused = std::get_if<Refused>(&*message)) {
      const auto reason = refused->reason;
      end(asked, reason);
      return true;
    }
    const bool is_last = std::holds_alternative<End>(*message);
    if (!is_last && !std::holds_alternative<Seen>(*message)) continue;
    asked.has_seen = true;
    asked.tool.send(encode(*message));
    if (!is_last) continue;
    asked.coordinator.reset();
    asked.limit = Deadline(kToolLimit);
    return true;
  }
  return false;
}

// False: the coordinator has closed the connection, since it has got all or nobody waits any more.
bool LaunchView::advance(Answer& answer) {
  try {
    answer.coordinator->advance();
    while (const auto message = answer.coordinator->receive()) {
      if (std::holds_alternative<Refused>(*message)) return false;
      if (!std::holds_alternative<Welcome>(*message)) continue;
      for (auto& part : std::exchange(answer.parts, {})) answer.coordinator->send(std::move(part));
    }
  } catch (const std::exception&) {
    return false;
  }
  return !answer.limit.expired();
}

}  // namespace lockstep::launch
