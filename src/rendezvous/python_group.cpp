// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "comm/from_c10d.h"
#include "rendezvous/store_barrier.h"

namespace lockstep::rendezvous {
namespace {

// Of PyTorch's names, which backends of other devices use too, and of the same ranks more than once.
comm::FromC10d::Split split_of(const std::string& backend) {
  auto counts = std::make_shared<std::map<std::string, int>>();
  return [backend, counts](const comm::FromC10d::Part& part) {
    const auto key = fmt::format("{} {}", part.name, fmt::join(part.ranks, ","));
    const auto prefix = fmt::format("{}/{}/{}/", backend, key, ++(*counts)[key]);
    return create_with_python(backend, {.store = c10::make_intrusive<c10d::PrefixStore>(prefix, part.store),
                                        .rank = part.rank,
                                        .size = static_cast<int>(part.ranks.size()),
                                        .timeout = part.timeout,
                                        .group_name = part.name})
        .backend;
  };
}

}  // namespace

void check_backend_with_python(const backends::BackendSpec& backend, const std::string& what) {
  const auto name = backend.text();
  if (name == "gloo" || name == "shm" || name == "hierarchical" || name == "nccl") return;
  throw ArgumentError(
      fmt::format("{} cannot be combined with the backend {}; name the one of the Python ranks: gloo, shm, "
                  "hierarchical or nccl",
                  what, name));
}

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
  auto handle = backends::create_backend(backends::BackendSpec(backend), request);
  if (auto* own = dynamic_cast<comm::FromC10d*>(handle.backend.get())) own->set_split(split_of(backend));
  return handle;
}

}  // namespace lockstep::rendezvous
