// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/backend.h>
#include <lockstep/comm/process_group.h>

namespace lockstep::comm {

class Membership;

struct BackendHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  BackendTraits traits;
  std::shared_ptr<node::NodeGroup> node_group = {};  // if all ranks run on one host
  std::shared_ptr<Membership> membership = {};       // if the group can be formed again
};

// What the error of a call in progress says when its rank leaves the group to form it again.
inline constexpr const char* kLeft =
    "this rank has left the group to form it again with reconfigure(), which ends the calls in progress";

// This process's part in a group whose members change. Its memory that ranks share serves every group that it
// forms. One thread at a time.
class Membership {
 public:
  Membership() = default;
  virtual ~Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  virtual std::string handle() const = 0;
  // Throws ArgumentError or RendezvousError for wrong options. Then calls `leave`, waits for the members at
  // most options.timeout or else `timeout`, and connects them. Calls over the new backend have `timeout`.
  // Throws RendezvousError if a member does not come or the uuid has been used.
  virtual BackendHandle form(const ReconfigureOptions& options, std::chrono::milliseconds timeout,
                             const std::function<void()>& leave) = 0;
  // [rank]: number of its host, of the last form().
  virtual std::vector<int> hosts() const = 0;
};

}  // namespace lockstep::comm
