// SPDX-License-Identifier: BSD-3-Clause
#include "backends/registry.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backends/factories.h"
#include "backends/group_membership.h"
#ifdef LOCKSTEP_HAS_GLOO
#include "backends/gloo/gloo_backend.h"
#endif
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

BackendHandle create_fake(const BackendRequest& request) {
  return {.backend = c10::make_intrusive<FakeBackend>(request.rank, request.size),
          .traits = FakeBackend::traits()};
}

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> all{
      {"fake", create_fake}, {"shm", create_shm},
#ifdef LOCKSTEP_HAS_GLOO
      {"gloo", create_gloo}, {"hierarchical", create_hierarchical},
#endif
#ifdef LOCKSTEP_HAS_MPI
      {"mpi", create_mpi},
#endif
#ifdef LOCKSTEP_HAS_NCCL
      {"nccl", create_nccl},
#endif
  };
  return all;
}

// Names that PyTorch users know, and why this build lacks them.
const std::map<std::string, std::string>& missing_backends() {
  static const std::map<std::string, std::string> all{
      {"gloo", "is not built: LOCKSTEP_WITH_GLOO=OFF was set"},
      {"hierarchical", "is not built: it needs gloo, and LOCKSTEP_WITH_GLOO=OFF was set"},
      {"nccl",
       "is not built: it needs a LibTorch with CUDA and NCCL; on the CPU use shm (one host), gloo or "
       "\"auto\""},
      {"mpi",
       "is not built: no MPI was found, or LOCKSTEP_WITH_MPI=OFF was set; install libopenmpi-dev and "
       "configure again. mpirun can start the ranks of the other backends"},
  };
  return all;
}

bool is_known(const std::string& name) {
  return factories().contains(name) || missing_backends().contains(name);
}

void require_built(const std::string& name) {
  if (factories().contains(name)) return;
  const auto available = fmt::format("this build has: {}", fmt::join(available_backends(), ", "));
  if (const auto missing = missing_backends().find(name); missing != missing_backends().end()) {
    throw_error<ArgumentError>("backend {} {}; {}", name, missing->second, available);
  }
  throw_error<ArgumentError>("there is no backend named \"{}\"; {}", name, available);
}

BackendSpec cpu_and_device(const std::string& cpu, c10::DeviceType device, const std::string& name) {
  return BackendSpec({{"cpu", cpu}, {device_type_name(device), name}});
}

std::string reason_of_hierarchical(const GroupTopology& ranks) {
  return fmt::format("shared memory on each host, {} between the hosts", network_between_hosts(ranks.env));
}

BackendChoice best_on_cpu(const GroupTopology& ranks) {
  if (ranks.one_host) return {BackendSpec("shm"), "all ranks are on one host"};
  if (factories().contains("hierarchical") && ranks.share_hosts)
    return {BackendSpec("hierarchical"), reason_of_hierarchical(ranks)};
  if (factories().contains("gloo")) return {BackendSpec("gloo"), "each rank is on a host of its own"};
  throw ArgumentError(
      "the ranks are spread over several hosts, which needs gloo, but this build has no gloo");
}

BackendChoice best_for(const GroupTopology& ranks) {
  auto choice = best_on_cpu(ranks);
  if (ranks.device.is_cpu()) return choice;
  const bool direct = ranks.device.is_cuda() && !ranks.share_device;
  const auto device = ranks.device.type();
  choice.reason += direct ? "; nccl for GPU tensors"
                          : fmt::format("; {} tensors go through host memory{}", device_type_name(device),
                                        ranks.share_device ? ", because ranks share a device" : "");
  if (direct) require_built("nccl");
  const auto cpu = choice.spec.name();
  choice.spec = cpu_and_device(cpu, device, direct ? "nccl" : cpu);
  return choice;
}

void check_device(const std::string& name, const GroupTopology& ranks) {
  if (!is_for_gpus(name)) return;
  if (!ranks.device.is_cuda()) {
    throw_error<ArgumentError>(
        "backend {} carries GPU tensors only, and this rank's device is {}; on the CPU use shm (one "
        "host), gloo or \"auto\"",
        name, ranks.device.str());
  }
  if (ranks.share_device) {
    throw_error<ArgumentError>(
        "backend {} cannot connect ranks that share a GPU; use \"auto\", gloo or shm, with which GPU "
        "tensors go through host memory",
        name);
  }
}

// PyTorch's gloo also accepts GPU tensors.
BackendChoice resolve_name(const std::string& name, const GroupTopology& ranks) {
  require_built(name);
  check_device(name, ranks);
  const bool is_split = name == "hierarchical" && !ranks.one_host;
  const auto reason = is_split ? reason_of_hierarchical(ranks) : "";
  if (ranks.device.is_cpu() || is_for_gpus(name) || name == "fake") return {BackendSpec(name), reason};
  return {cpu_and_device(name, ranks.device.type(), name), reason};
}

BackendChoice resolve_entries(const BackendSpec& wanted, const GroupTopology& ranks) {
  for (const auto& name : wanted.names()) {
    if (!is_known(name)) require_built(name);
  }
  const auto device = ranks.device.type();
  const auto own = wanted.find(device);
  if (!own) {
    throw_error<ArgumentError>("backend \"{}\" names no backend for {} tensors", wanted.text(),
                               device_type_name(device));
  }
  require_built(*own);
  check_device(*own, ranks);
  const auto host = wanted.find(c10::kCPU);
  if (host && is_for_gpus(*host)) {
    throw_error<ArgumentError>("backend \"{}\": {} does not carry cpu tensors", wanted.text(), *host);
  }
  if (ranks.device.is_cpu() || (!host && is_for_gpus(*own))) return {BackendSpec(*own)};
  if (host) require_built(*host);
  return {cpu_and_device(host.value_or(*own), device, *own)};
}

BackendRequest part_of(const BackendRequest& whole, const std::string& kind) {
  auto part = whole;
  part.store = c10::make_intrusive<c10d::PrefixStore>(kind, whole.store);
  part.key += "/" + kind;
  return part;
}

BackendHandle device_part(const std::string& name, const std::string& host_name, const BackendHandle& host,
                          const BackendRequest& request) {
  const auto kind = request.device.type();
  if (name == host_name) return stage_through_host(host, kind);
  auto own = part_of(request, device_type_name(kind));
  if (!is_for_gpus(name)) return stage_through_host(factories().at(name)(own), kind);
  own.one_host = false;  // the CPU part has the node-local group
  return factories().at(name)(own);
}

}  // namespace

std::vector<std::string> available_backends() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

BackendChoice resolve_backend(const BackendSpec& wanted, const GroupTopology& ranks) {
  if (wanted.is_auto()) return best_for(ranks);
  return wanted.has_entries() ? resolve_entries(wanted, ranks) : resolve_name(wanted.name(), ranks);
}

std::string network_between_hosts(const Env& env) {
  const auto name = env.get(kNetworkVariable).value_or("gloo");
  if (name != "gloo" && name != "mpi")
    throw_error<ArgumentError>("{}={}; it is gloo or mpi", kNetworkVariable, name);
  require_built(name);
  return name;
}

void check_environment(const BackendSpec& spec, const Env& env) {
  const auto network = spec.contains("hierarchical") ? network_between_hosts(env) : "";
#ifdef LOCKSTEP_HAS_MPI
  if (spec.contains("mpi")) check_mpi_launcher(env);
  if (network == "mpi") check_mpi_launcher(env, fmt::format("{}=mpi", kNetworkVariable));
#endif
#ifdef LOCKSTEP_HAS_GLOO
  if (!spec.contains("gloo") && network != "gloo") return;
  if (const auto list = env.get("GLOO_SOCKET_IFNAME")) interfaces_named(*list);
#endif
}

BackendHandle create_backend(const BackendSpec& spec, const BackendRequest& request) {
  if (!spec.has_entries()) return create_member(spec.name(), factories().at(spec.name()), request);
  const auto host_name = *spec.find(c10::kCPU);
  auto host = factories().at(host_name)(part_of(request, "cpu"));
  auto own = device_part(*spec.find(request.device.type()), host_name, host, request);
  return make_device_dispatch({std::move(host), std::move(own)});
}

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

bool lockstep::is_backend_available(const std::string& backend) {
  return std::ranges::count(backends::available_backends(), backend) > 0;
}
