// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/host_meeting.h"
#include "backends/shm/shm_backend.h"

namespace lockstep::backends {
namespace {

BackendTraits shm_traits() {
  using c10::ScalarType;
  return {.devices = {c10::DeviceType::CPU},
          .dtypes = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                     ScalarType::Char, ScalarType::Byte, ScalarType::Short, ScalarType::Int, ScalarType::Long,
                     ScalarType::UInt16, ScalarType::UInt32, ScalarType::UInt64, ScalarType::Bool},
          .averages = true,
          .notices_death = true,
          .compares_calls = true,
          .uneven_all_gather = true,
          .device_advice = "move it to the CPU, or use a backend for its device"};
}

}  // namespace

BackendHandle create_shm(const BackendRequest& request) {
  if (!request.one_host) {
    throw RendezvousError(
        fmt::format("rank {} of {}: backend shm: the ranks of group {} run on different hosts; use gloo, or "
                    "leave the backend at \"auto\"",
                    request.rank, request.size, request.group_name));
  }
  const auto host_group = meet_on_host(request, shm::Connection::part(request.size));
  auto connection = std::make_shared<shm::Connection>(host_group);
  return {.backend = c10::make_intrusive<ShmBackend>(request.rank, request.size, std::move(connection),
                                                     request.timeout),
          .traits = shm_traits(),
          .host_group = host_group};
}

}  // namespace lockstep::backends
