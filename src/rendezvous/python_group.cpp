// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <numeric>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "rendezvous/store_barrier.h"

namespace lockstep::rendezvous {

backends::BackendHandle create_with_python(const std::string& backend, backends::BackendRequest request) {
  request.key = request.group_name;
  if (backend == "gloo" || backend == "nccl") {
    request.only_c10d_keys = true;
  } else {
    store_barrier(*request.store, request.rank, request.size, Deadline(request.timeout));
    const auto map = read_host_map(*request.store);
    std::vector<int> ranks(static_cast<std::size_t>(request.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    request.hosts = map.hosts_of(ranks);
    request.one_host = map.all_on_one_host(ranks);
    request.master_host = request.env.get("MASTER_ADDR").value_or(request.master_host);
  }
  return backends::create_backend(backends::BackendSpec(backend), request);
}

}  // namespace lockstep::rendezvous
