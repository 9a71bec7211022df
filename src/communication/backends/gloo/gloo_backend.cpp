// SPDX-License-Identifier: BSD-3-Clause
// The only file that includes Gloo's headers: the distribution's Gloo is older than the one inside LibTorch,
// so no symbol of these classes may be defined by our objects (a test looks at them).
#include "backends/gloo/gloo_backend.h"

#include <memory>
#include <net/if.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backends/factories.h"
#include "base/limits.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"

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

// Called by every rank when one has complained: the store may end with the first rank that throws.
void wait_until_all_know(c10d::Store& store, int ranks) {
  constexpr const char* counted = "ranks_that_know";
  constexpr const char* all_know = "all_know";
  constexpr std::chrono::seconds limit(5);  // a rank may have died
  try {
    if (store.add(counted, 1) == ranks) store.set(all_know, std::vector<std::uint8_t>());
    store.wait({all_know}, limit);
  } catch (const std::exception&) {  // this rank knows, and its error is the complaint
  }
}

// An exception in the midst of Gloo's constructors would end the process, or leave it waiting. Each rank has as
// many threads of its own until all ranks have theirs: otherwise ranks of one host could take each other's last
// ones between check and start.
void require_threads(const BackendRequest& request, int count) {
  constexpr const char* counted = "ranks_with_threads";
  constexpr const char* outcome = "all_have_threads";
  auto& store = *request.store;
  const bool alone = request.size == 1 || request.python.only_c10d_keys;
  const auto as_bytes = [](const std::string& text) {
    return std::vector<std::uint8_t>(text.begin(), text.end());
  };
  std::vector<std::uint8_t> complaint;
  try {
    const ReservedThreads reserved(count, "the backend gloo");
    if (alone) return;
    if (store.add(counted, 1) == request.size) store.set(outcome, as_bytes(""));
    store.wait({outcome}, request.timeout);
    complaint = store.get(outcome);
  } catch (const Error& error) {
    if (alone) throw;
    store.set(outcome, as_bytes(fmt::format("rank {}: {}", request.rank, error.what())));
    wait_until_all_know(store, request.size);
    throw;
  }
  if (complaint.empty()) return;
  wait_until_all_know(store, request.size);
  throw RendezvousError(std::string(complaint.begin(), complaint.end()));
}

}  // namespace

BackendHandle create_gloo(const BackendRequest& request) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
    require_threads(request, options->threads + 1);
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
    throw_error<RendezvousError>(request.reporter(), request.about(),
                                 "Gloo could not connect the ranks of group {}: {}", request.group_name,
                                 first_line_of(exception_text(error)));
  }
}

namespace {

// The source address of packets to `target`: connecting a datagram socket only asks the kernel for a route.
std::string source_address(const SocketAddress& target) {
  const UniqueFd fd(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), target.get(), target.length) != 0) return "";
  return address_of(fd.get()).text();
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string key_of(int rank) { return fmt::format("route/{}", rank); }

}  // namespace

std::string describe_interfaces() {
  std::string text;
  for (const auto& interface : network_interfaces()) {
    if (!interface.up) continue;
    for (const auto& address : interface.addresses)
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", interface.name, address);
  }
  return text.empty() ? "none that is up" : text;
}

std::vector<std::string> interfaces_named(const std::string& list) {
  auto names = split(list, ',');
  std::erase(names, "");
  for (const auto& name : names) {
    if (::if_nametoindex(name.c_str()) != 0) continue;
    throw_error<RendezvousError>(
        "GLOO_SOCKET_IFNAME names the interface {}, which this host does not have; "
        "it has {}",
        name, describe_interfaces());
  }
  return names;
}

std::string local_address_towards(const std::string& host) {
  constexpr int kAnyPort = 9;  // nothing is sent
  const auto found = resolve_now(host, kAnyPort);
  if (!found.error.empty()) {
    throw_error<RendezvousError>(ErrorDetails{.host = host},
                                 "the master address {} does not resolve ({}); this host's interfaces are {}",
                                 host, found.error, describe_interfaces());
  }
  for (const auto& target : found.addresses) {
    if (auto address = source_address(target); !address.empty()) return address;
  }
  throw_error<RendezvousError>(ErrorDetails{.host = host},
                               "no interface of this host routes to the master address {}; tried {}. Set "
                               "MASTER_ADDR to an address that all ranks reach, or GLOO_SOCKET_IFNAME",
                               host, describe_interfaces());
}

std::string shared_route(const BackendRequest& request) {
  const std::string own = local_address_towards(request.master_host);
  if (request.one_host || request.python.only_c10d_keys) return own;
  request.store->set(key_of(request.rank), own);
  if (!is_loopback(own)) return own;
  for (int rank = 0; rank < request.size; ++rank) {
    const std::string other = request.store->get_to_str(key_of(rank));
    if (!is_loopback(other)) return local_address_towards(other);
  }
  throw_error<RendezvousError>(
      "the ranks run on several hosts, but every one of them reaches the master address {} over the "
      "loopback. Set MASTER_ADDR to rank 0's address on the network, or GLOO_SOCKET_IFNAME; this host has {}",
      request.master_host, describe_interfaces());
}

}  // namespace lockstep::backends
