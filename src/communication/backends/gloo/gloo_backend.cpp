// SPDX-License-Identifier: BSD-3-Clause
// The only file that includes Gloo's headers: the distribution's Gloo is older than the one inside LibTorch,
// so no symbol of these classes may be defined by our objects (a test looks at them).
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/gloo/route.h"
#include "base/env.h"
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

using Device = std::shared_ptr<::gloo::transport::Device>;

// PyTorch's variable holds for all groups.
bool connects_on_use(const BackendRequest& request) {
  return request.gloo.connect_on_use || c10d::getDefaultGlooLazyInit();
}

std::vector<Device> devices_named(const std::string& list, bool on_use) {
  std::vector<Device> devices;
  for (const auto& name : interfaces_named(list)) {
    devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name, on_use));
  }
  return devices;
}

std::vector<Device> tcp_devices(const BackendRequest& request) {
  const bool on_use = connects_on_use(request);
  if (const auto named = request.env.get("GLOO_SOCKET_IFNAME")) return devices_named(*named, on_use);
  return {c10d::ProcessGroupGloo::createDeviceForHostname(shared_route(request), on_use)};
}

// LibTorch reads GLOO_DEVICE_TRANSPORT when it makes a device.
std::vector<Device> devices_for(const BackendRequest& request) {
  const auto transport = request.env.get("GLOO_DEVICE_TRANSPORT").value_or("TCP");
  try {
    return tcp_devices(request);
  } catch (const c10::Error& error) {
    if (transport == "TCP") throw;
    throw_error<ArgumentError>(
        "GLOO_DEVICE_TRANSPORT={}: this LibTorch's Gloo cannot use it ({}). PyTorch's packages are "
        "built without TLS; use a private network, WireGuard or ssh tunnels (docs/security.md)",
        transport, error.what_without_backtrace());
  }
}

BackendTraits gloo_traits() {
  using c10::ScalarType;
  return {.devices = {c10::DeviceType::CPU},
          .dtypes = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                     ScalarType::Char, ScalarType::Byte, ScalarType::Bool, ScalarType::Int, ScalarType::Long},
          .averages = false,
          .device_advice = "move it to the CPU, or use a backend for its device"};
}

}  // namespace

BackendHandle create_gloo(const BackendRequest& request) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
    options->devices = devices_for(request);
    options->group_name = request.group_name;
    return {.backend = c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.rank, request.size,
                                                                   options),
            .traits = gloo_traits(),
            .node_group = request.one_host && request.size > 1 && !request.python.only_c10d_keys
                              ? join_node_group(request, {})
                              : nullptr};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw_error<RendezvousError>("rank {} of {}: Gloo could not connect the ranks of group {}: {}",
                                 request.rank, request.size, request.group_name,
                                 text.substr(0, text.find('\n')));
  }
}

}  // namespace lockstep::backends
