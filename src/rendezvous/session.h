// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/backends/registry.h>
#include <lockstep/base/world.h>
#include <lockstep/rendezvous/init.h>

#include "comm/thread_meeting.h"
#include "rendezvous/broken_pipes.h"
#include "rendezvous/host_table.h"
#include "rendezvous/placement.h"

namespace lockstep::rendezvous {

// Everything that a living context owns.
class Session {
 public:
  // `threads`: where the ranks are threads of this process, which then have a default group each.
  Session(const InitOptions& options, const Placement& placement, c10::intrusive_ptr<c10d::Store> store,
          std::shared_ptr<comm::ThreadMeeting> threads = {});
  // Leaves: normally, rank 0 stays a moment until the others have left, since it serves their store.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const World& world() const { return world_; }
  c10::Device device() const { return device_; }
  const ProcessGroup& group() const { return *group_; }
  void synchronize() const;
  void keep(std::unique_ptr<IgnoredBrokenPipes> ignored) { ignored_broken_pipes_ = std::move(ignored); }
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks, const GroupOptions& options);

 private:
  backends::Whereabouts whereabouts(const std::vector<int>& ranks) const;

  // What carries a group's data, and whether its members share a host.
  struct Way {
    std::string name;
    bool one_host = true;
    NcclOptions nccl = {};
  };

  ProcessGroup connect(const std::string& key, const Way& way, int rank, int size, ProcessGroupInfo info);
  void settle_device(const InitOptions& options);
  void check_members(const std::vector<int>& ranks) const;
  void make_current();
  void end_being_current() noexcept;
  void wait_for_others_to_leave();

  std::unique_ptr<IgnoredBrokenPipes> ignored_broken_pipes_;  // outlives all that has sockets
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<comm::ThreadMeeting> threads_;
  Env env_;
  std::string master_host_;
  std::string backend_;  // as it was asked for
  HostTable hosts_;
  World world_;
  c10::Device device_;
  bool share_device_ = false;  // some ranks have the same one
  std::string net_name_;
  NcclOptions nccl_;
  int uncaught_at_start_;
  bool check_calls_;
  int groups_made_ = 0;
  std::optional<ProcessGroup> group_;
  std::vector<ProcessGroup> subgroups_;
};

// The session of the living context, or nullptr. Of this thread, where it is a rank by itself.
Session* current_session();

// The device that a rank most likely has, for what can be checked before ranks meet.
c10::Device expected_device(const InitOptions& options);

// Whether this thread is a rank by itself.
bool is_thread_rank();

}  // namespace lockstep::rendezvous
