// SPDX-License-Identifier: BSD-3-Clause
#include "backends/host_meeting.h"

namespace lockstep::backends {

std::shared_ptr<comm::HostGroup> meet_on_host(const BackendRequest& request, comm::HostGroup::Part part) {
  constexpr const char* kKey = "host_socket";
  constexpr const char* kComplaints = "host_complaints";
  constexpr const char* kComplaint = "host_complaint";
  const comm::MeetingPoint point{
      .publish = [&](const std::string& name) { request.store->set(kKey, name); },
      .lookup =
          [&] {
            request.store->wait({kKey}, request.timeout);
            return request.store->get_to_str(kKey);
          },
      .complain =
          [&](const std::string& text) {
            if (request.store->add(kComplaints, 1) == 1) request.store->set(kComplaint, text);
          },
      .complaint =
          [&] {
            return request.store->check({kComplaint}) ? request.store->get_to_str(kComplaint) : std::string();
          },
      .threads = request.threads,
      .group = request.key,
  };
  return comm::HostGroup::meet(request.rank, request.size, part, request.group_name, point,
                               Deadline(request.timeout));
}

}  // namespace lockstep::backends
