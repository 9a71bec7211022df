// SPDX-License-Identifier: BSD-3-Clause
#include "backends/group_membership.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <lockstep/base/mutex.h>
#include <lockstep/version.h>

#include "backends/forming_watch.h"
#include "backends/member_store.h"
#include "backends/reconfigurable_backend.h"
#include "backends/shm/connection.h"
#include "base/deadline.h"
#include "base/host.h"
#include "base/liveness.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

using std::chrono::milliseconds;

constexpr const char* kKind = "lockstep/3";  // the form of a handle

// In all forms of a handle from lockstep/3 on.
std::string own_versions() {
  return fmt::format("Lockstep {} with LibTorch {}", lockstep::version(), TORCH_VERSION);
}

// A process that can be a rank. Equal to another one only if it is that process, group and formation.
struct Member {
  int rank = 0;                // before
  std::uint64_t token = 0;     // of the process's group
  std::int64_t formation = 0;  // uuid of the last reconfigure()
  ProcessIdentity process;
  std::string host;

  // "lockstep/3:<versions>:<rank>:<token>:<formation>:<pid>:<start>:<space>:<host>"
  std::string text() const {
    return fmt::format("{}:{}:{}:{:x}:{}:{}:{}:{}:{}", kKind, own_versions(), rank, token, formation,
                       process.pid, process.start, process.space, host);
  }

  static Member from_text(const std::string& text) {
    Member member;
    std::istringstream fields(text);
    std::string kind;
    std::string versions;
    char colon = 0;
    std::getline(fields, kind, ':');
    std::getline(fields, versions, ':');
    if (versions.starts_with("Lockstep ") && versions != own_versions()) {
      throw_error<RendezvousError>(
          "reconfigure: a handle is of a process with {}, but this process has {}; build the programs of all "
          "members with the same versions. The handle is \"{}\"",
          versions, own_versions(), text);
    }
    fields >> member.rank >> colon >> std::hex >> member.token >> colon >> std::dec >> member.formation >>
        colon >> member.process.pid >> colon >> member.process.start >> colon;
    std::getline(fields, member.process.space, ':');
    std::getline(fields, member.host);
    if (kind == kKind && fields && member.text() == text) return member;
    throw_error<ArgumentError>(
        "reconfigure: \"{}\" is no handle of this version of Lockstep; pass what the members' "
        "reconfigure_handle() returned",
        text);
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

std::vector<ProcessIdentity> processes_of(const std::vector<std::string>& handles) {
  std::vector<ProcessIdentity> processes;
  for (const auto& handle : handles) processes.push_back(Member::from_text(handle).process);
  return processes;
}

std::string member_key(int rank) { return fmt::format("member/{}", rank); }

std::string was_used(std::int64_t uuid) { return fmt::format("uuid {} was already used", uuid); }

// `theirs`: the list for which the uuid is claimed.
std::string difference(const std::vector<std::string>& handles, const std::string& theirs,
                       std::int64_t uuid) {
  std::vector<std::string> others;
  std::istringstream lines(theirs);
  for (std::string line; std::getline(lines, line);) others.push_back(line);
  if (std::ranges::is_permutation(handles, others))
    return "the members pass the handles in different orders; the position of a handle is its rank";
  return fmt::format("{}, or the members pass different handles: {} here, {} on the first of them",
                     was_used(uuid), handles.size(), others.size());
}

class GroupMembership final : public comm::Membership {
 public:
  GroupMembership(Factory connect, BackendRequest request)
      : connect_(std::move(connect)), request_(std::move(request)), hosts_(request_.hosts) {
    self_ = {.rank = request_.rank,
             .token = random_token(),
             .formation = -1,
             .process = ProcessIdentity::own(),
             .host = memory_identity()};
  }

  std::string handle() const override {
    const MutexLock lock(mutex_);
    return self_.text();
  }
  std::vector<int> hosts() const override {
    const MutexLock lock(mutex_);
    return hosts_;
  }

  BackendHandle form(const ReconfigureOptions& options, milliseconds timeout,
                     const std::function<void()>& leave) override {
    const MutexLock lock(forming_);
    const Deadline deadline(options.timeout ? options.timeout->milliseconds() : timeout);
    const auto handles = in_rank_order(options);
    auto request = request_for(handles);
    Forming forming(request_, options.uuid, handles);
    request.store = forming.store;
    request.find_lost = [watch = forming.watch] { return watch->find_lost(); };
    request.key = fmt::format("{}/reconfigure/{}", request_.key, options.uuid);
    stores_.push_back(forming.store);
    if (used_.contains(options.uuid)) give_up(request, forming, {was_used(options.uuid)});
    leave();
    used_.insert(options.uuid);
    auto group = connect(request, forming, deadline);
    group.backend->setTimeout(timeout);
    // The groups before are left, and no member that they still have connects to this one.
    for (; stores_.size() > 1; stores_.erase(stores_.begin())) stores_.front()->delete_own_keys();
    const MutexLock change(mutex_);
    self_.rank = request.rank;
    self_.formation = options.uuid;
    hosts_ = request.hosts;
    return group;
  }

 private:
  // One attempt.
  struct Forming {
    Forming(const BackendRequest& group, std::int64_t uuid_of_all, std::vector<std::string> handles_of_all)
        : uuid(uuid_of_all),
          handles(std::move(handles_of_all)),
          store(c10::make_intrusive<MemberStore>(fmt::format("reconfigure/{}", uuid), group.store)),
          watch(std::make_shared<FormingWatch>(processes_of(handles), store, group.threads)) {}

    std::int64_t uuid;
    std::vector<std::string> handles;  // [rank]
    c10::intrusive_ptr<MemberStore> store;
    std::shared_ptr<FormingWatch> watch;
  };

  // Checks the options.
  BackendRequest request_for(const std::vector<std::string>& handles) const {
    const auto own = std::ranges::find(handles, handle());
    const auto refuse = [&](const std::string& complaint) {
      throw_error<ArgumentError>("reconfigure of group {}: {}", request_.group_name, complaint);
    };
    if (handles.empty()) refuse("handles is empty; pass one handle for each member");
    if (std::set(handles.begin(), handles.end()).size() < handles.size())
      refuse("a handle is listed twice; pass one handle for each member");
    auto request = request_;
    request.hosts = host_numbers(handles);
    if (own == handles.end()) {
      refuse(
          "handles lacks the handle of this process. A process that is not to be a member does not call "
          "reconfigure(); a handle is valid until the next reconfigure() has succeeded");
    }
    request.rank = static_cast<int>(own - handles.begin());
    request.size = static_cast<int>(handles.size());
    request.one_host = std::ranges::count(request.hosts, request.hosts.front()) == std::ssize(handles);
    return request;
  }

  // Why a group cannot be formed, and members that have not come.
  struct Complaint {
    std::string text = {};
    std::vector<int> missing = {};
  };

  [[noreturn]] static void fail(const BackendRequest& request, const Complaint& complaint) {
    throw_error<RendezvousError>(request.reporter(), request.about(complaint.missing),
                                 "reconfigure of group {}: {}. Try again with a new uuid, the same on all "
                                 "members, and without the handles of lost processes",
                                 request.group_name, complaint.text);
  }

  // Tells the others, too.
  [[noreturn]] static void give_up(const BackendRequest& request, const Forming& forming,
                                   const Complaint& complaint) {
    forming.watch->report(fmt::format("rank {} has given up: {}", request.rank, complaint.text));
    fail(request, complaint);
  }

  // Returns when all members are there, or what keeps them from being there. The first one claims the uuid
  // for this list of them.
  static Complaint meet(const BackendRequest& request, const Forming& forming, const Deadline& deadline) {
    auto& store = *request.store;
    const auto own = fmt::format("{}", fmt::join(forming.handles, "\n"));
    if (const auto theirs = store.compareSet("members", "", own); theirs != own)
      return {difference(forming.handles, theirs, forming.uuid)};
    store.set(member_key(request.rank), "");
    std::vector<std::string> keys;
    for (int rank = 0; rank < request.size; ++rank) keys.push_back(member_key(rank));
    try {
      store.wait(keys, std::max<milliseconds>(deadline.remaining(), milliseconds(1)));
      return {};
    } catch (const RendezvousError&) {
      if (!forming.watch->find_lost().empty()) throw;
    }
    std::vector<int> missing;
    for (int rank = 0; rank < request.size; ++rank)
      if (!store.check({member_key(rank)})) missing.push_back(rank);
    if (missing.empty()) return {};
    auto text =
        fmt::format("timed out: rank{} {} did not call it within {} ms", missing.size() == 1 ? "" : "s",
                    fmt::join(missing, ", "), deadline.timeout().count());
    return {std::move(text), std::move(missing)};
  }

  BackendHandle connect(BackendRequest request, const Forming& forming, const Deadline& deadline) const {
    forming.store->watch(request.find_lost);
    bool formed = false;
    const auto end = c10::make_scope_exit([&] {
      const auto failed = [] { return std::string("the group could not be formed"); };
      forming.store->watch(formed ? std::function<std::string()>() : failed);
    });
    Complaint complaint, error;
    try {
      complaint = meet(request, forming, deadline);
      if (complaint.text.empty()) {
        request.timeout = std::max<milliseconds>(deadline.remaining(), milliseconds(1));
        auto group = connect_(request);
        formed = true;
        return group;
      }
    } catch (const Error& failed) {
      error = {failed.what(), failed.ranks()};
    } catch (const c10::Error& failed) {
      error.text = fmt::format("the members could not be connected, or the store is gone: {}",
                               first_line_of(failed.what_without_backtrace()));
    } catch (...) {  // a signal handler's
      forming.watch->report(fmt::format("rank {} has been interrupted", request.rank));
      throw;
    }
    if (complaint.text.empty()) {
      if (const auto lost = forming.watch->find_cause(); !lost.empty()) fail(request, {lost});
    }
    give_up(request, forming, complaint.text.empty() ? error : complaint);
  }

  Factory connect_;
  BackendRequest request_;
  Mutex forming_;
  std::set<std::int64_t> used_ LOCKSTEP_GUARDED_BY(forming_);  // uuids
  // Stores of the group and of attempts after it.
  std::vector<c10::intrusive_ptr<MemberStore>> stores_ LOCKSTEP_GUARDED_BY(forming_);
  mutable Mutex mutex_;
  Member self_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int> hosts_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

bool can_be_formed_again(const std::string& backend, const BackendRequest& request) {
  return backend == "shm" || (backend == "hierarchical" && network_between_hosts(request.env) == "gloo");
}

BackendHandle create_member(const std::string& name, const Factory& connect, const BackendRequest& request) {
  if (!can_be_formed_again(name, request)) {
    if (!request.enable_reconfigure) return connect(request);
    throw_error<ArgumentError>(
        "enable_reconfigure: a group of backend {} cannot be formed again; use shm, or "
        "hierarchical over gloo",
        name);
  }
  auto own = request;
  own.enable_reconfigure = false;
  own.shm.heap = shm::make_heap(own.size);
  const auto membership = std::make_shared<GroupMembership>(connect, own);
  auto handle = request.enable_reconfigure ? group_without_members(name, own) : connect(own);
  handle.membership = membership;
  return handle;
}

}  // namespace lockstep::backends
