// SPDX-License-Identifier: BSD-3-Clause
#include "backends/join_node_group.h"

namespace lockstep::backends {

std::shared_ptr<node::NodeGroup> join_node_group(const BackendRequest& request, node::NodeGroup::Part part) {
  constexpr const char* kKey = "host_socket";
  constexpr const char* kComplaints = "host_complaints";
  constexpr const char* kComplaint = "host_complaint";
  const node::ExchangePoint point{
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
            if (auto lost = request.find_lost ? request.find_lost() : ""; !lost.empty()) return lost;
            return request.store->check({kComplaint}) ? request.store->get_to_str(kComplaint) : std::string();
          },
      .threads = request.threads,
      .group = request.key,
  };
  return node::NodeGroup::meet(request.rank, request.size, part, request.group_name, point,
                               Deadline(request.timeout));
}

}  // namespace lockstep::backends
