// SPDX-License-Identifier: BSD-3-Clause
#include "backends/group_membership.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>

#include "backends/reconfigurable_backend.h"
#include "backends/shm/connection.h"
#include "base/deadline.h"
#include "base/host.h"
#include "base/wait_check.h"

namespace lockstep::backends {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr const char* kKind = "lockstep/1";  // the form of a handle
constexpr microseconds kFirstPause{50};
constexpr microseconds kLongestPause{10'000};

// A process that can be a rank. Equal to another one only if it is that process, group and formation.
struct Member {
  int rank = 0;                // before
  std::uint64_t token = 0;     // of the process's group
  std::int64_t formation = 0;  // uuid of the last reconfigure()
  std::string host;

  // "lockstep/1:<rank>:<token>:<formation>:<host>"
  std::string text() const { return fmt::format("{}:{}:{:x}:{}:{}", kKind, rank, token, formation, host); }

  static Member from_text(const std::string& text) {
    Member member;
    std::istringstream fields(text);
    std::string kind;
    char colon = 0;
    std::getline(fields, kind, ':');
    fields >> member.rank >> colon >> std::hex >> member.token >> colon >> std::dec >> member.formation >>
        colon;
    std::getline(fields, member.host);
    if (kind == kKind && fields && member.text() == text) return member;
    throw ArgumentError(
        fmt::format("reconfigure: \"{}\" is no handle of this version of Lockstep; pass what the members' "
                    "reconfigure_handle() returned",
                    text));
  }
};

std::uint64_t random_token() {
  std::random_device source;
  return std::uint64_t{source()} << 32U | source();
}

// A list is in rank order. For a set the ranks of a host are neighbours, each host's in their old order.
std::vector<std::string> in_rank_order(const ReconfigureOptions& options) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&options.handles)) return *list;
  const auto& set = std::get<std::unordered_set<std::string>>(options.handles);
  std::vector<std::string> handles(set.begin(), set.end());
  std::ranges::sort(handles, {}, [](const std::string& handle) {
    const auto member = Member::from_text(handle);
    return std::tuple(member.host, member.rank, handle);
  });
  return handles;
}

// [rank]: a number for its host, and whether all are on one.
std::vector<int> host_numbers(const std::vector<std::string>& handles) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const auto& handle : handles)
    hosts.push_back(numbers.try_emplace(Member::from_text(handle).host, numbers.size()).first->second);
  return hosts;
}

std::string member_key(int rank) { return fmt::format("member/{}", rank); }

class GroupMembership final : public comm::Membership {
 public:
  GroupMembership(Factory connect, BackendRequest request)
      : connect_(std::move(connect)), request_(std::move(request)), hosts_(request_.hosts) {
    self_ = {.rank = request_.rank, .token = random_token(), .formation = -1, .host = memory_identity()};
  }

  std::string handle() const override {
    const std::lock_guard lock(mutex_);
    return self_.text();
  }
  std::vector<int> hosts() const override {
    const std::lock_guard lock(mutex_);
    return hosts_;
  }

  BackendHandle form(const ReconfigureOptions& options, milliseconds timeout,
                     const std::function<void()>& leave) override {
    const std::lock_guard lock(forming_);
    const Deadline deadline(options.timeout.value_or(timeout));
    const auto handles = in_rank_order(options);
    const auto request = request_for(handles, options, deadline);
    leave();
    used_.insert(options.uuid);
    auto group = connect(request, handles, options.uuid, deadline);
    group.backend->setTimeout(timeout);
    const std::lock_guard change(mutex_);
    self_.rank = request.rank;
    self_.formation = options.uuid;
    hosts_ = request.hosts;
    return group;
  }

 private:
  // Checks the options.
  BackendRequest request_for(const std::vector<std::string>& handles, const ReconfigureOptions& options,
                             const Deadline& deadline) const {
    const auto own = std::ranges::find(handles, self_.text());
    const auto refuse = [&](const std::string& complaint) {
      throw ArgumentError(fmt::format("reconfigure of group {}: {}", request_.group_name, complaint));
    };
    if (handles.empty()) refuse("handles is empty; pass one handle for each member");
    if (std::set(handles.begin(), handles.end()).size() < handles.size())
      refuse("a handle is listed twice; pass one handle for each member");
    if (deadline.timeout().count() <= 0)
      refuse(fmt::format("timeout is {} ms; it must be positive", deadline.timeout().count()));
    auto request = request_;
    request.hosts = host_numbers(handles);
    if (own == handles.end()) {
      refuse(
          "handles lacks the handle of this process. A process that is not to be a member does not call "
          "reconfigure(); a handle is valid until the next reconfigure() has succeeded");
    }
    if (used_.contains(options.uuid)) throw used(options.uuid);
    request.store =
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("reconfigure/{}", options.uuid), request_.store);
    request.rank = static_cast<int>(own - handles.begin());
    request.size = static_cast<int>(handles.size());
    request.one_host = std::ranges::count(request.hosts, request.hosts.front()) == std::ssize(handles);
    request.key = fmt::format("{}/reconfigure/{}", request_.key, options.uuid);
    return request;
  }

  RendezvousError used(std::int64_t uuid) const {
    return RendezvousError(fmt::format(
        "reconfigure of group {}: uuid {} was already used; pass a new one each time, the same on "
        "all members",
        request_.group_name, uuid));
  }

  // Returns when all members are there. The first one claims the uuid for this list of them.
  void meet(const BackendRequest& request, const std::vector<std::string>& handles, std::int64_t uuid,
            const Deadline& deadline) const {
    auto& store = *request.store;
    const auto own = fmt::format("{}", fmt::join(handles, "\n"));
    if (const auto theirs = store.compareSet("members", "", own); theirs != own) {
      throw RendezvousError(
          fmt::format("{}. Or the members pass different handles: {} here, {} on the first of them",
                      used(uuid).what(), handles.size(), std::ranges::count(theirs, '\n') + 1));
    }
    store.set(member_key(request.rank), "");
    std::vector<std::string> keys;
    for (int rank = 0; rank < request.size; ++rank) keys.push_back(member_key(rank));
    for (auto pause = kFirstPause; !store.check(keys); pause = std::min(2 * pause, kLongestPause)) {
      check_wait();
      if (deadline.expired()) throw missing(store, request, deadline);
      std::this_thread::sleep_for(pause);
    }
  }

  RendezvousError missing(c10d::Store& store, const BackendRequest& request, const Deadline& deadline) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < request.size; ++rank)
      if (!store.check({member_key(rank)})) ranks.push_back(rank);
    return RendezvousError(fmt::format(
        "rank {} of {}: reconfigure of group {} timed out: rank{} {} did not call it within {} ms. Try "
        "again with another uuid, and without the handles of lost processes",
        request.rank, request.size, request_.group_name, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
        deadline.timeout().count()));
  }

  BackendHandle connect(BackendRequest request, const std::vector<std::string>& handles, std::int64_t uuid,
                        const Deadline& deadline) const {
    try {
      meet(request, handles, uuid, deadline);
      request.timeout = std::max<milliseconds>(deadline.remaining(), milliseconds(1));
      return connect_(request);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      throw RendezvousError(
          fmt::format("rank {} of {}: reconfigure of group {}: the members could not be connected, or the "
                      "store is gone: {}",
                      request.rank, request.size, request_.group_name, text.substr(0, text.find('\n'))));
    }
  }

  Factory connect_;
  BackendRequest request_;
  std::mutex forming_;
  std::set<std::int64_t> used_;  // uuids
  mutable std::mutex mutex_;
  Member self_;
  std::vector<int> hosts_;
};

}  // namespace

bool can_be_formed_again(const std::string& backend, const BackendRequest& request) {
  return backend == "shm" || (backend == "hierarchical" && network_between_hosts(request.env) == "gloo");
}

BackendHandle create_member(const std::string& name, const Factory& connect, const BackendRequest& request) {
  if (!can_be_formed_again(name, request)) {
    if (!request.enable_reconfigure) return connect(request);
    throw ArgumentError(
        fmt::format("enable_reconfigure: a group of backend {} cannot be formed again; use shm, or "
                    "hierarchical over gloo",
                    name));
  }
  auto own = request;
  own.enable_reconfigure = false;
  own.heap = shm::make_heap(own.size);
  const auto membership = std::make_shared<GroupMembership>(connect, own);
  auto handle = request.enable_reconfigure ? group_without_members(name, own) : connect(own);
  handle.membership = membership;
  return handle;
}

}  // namespace lockstep::backends
