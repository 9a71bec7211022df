// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/backends/fake.h>
#include <lockstep/backends/registry.h>
#include <lockstep/base/error.h>

#include "backends/backend_list.h"
#include "backends/by_device/by_device_backend.h"
#include "backends/shm/shm_backend.h"
#include "backends/staged/staged_backend.h"
#ifdef LOCKSTEP_HAS_GLOO
#include "backends/gloo/gloo_backend.h"
#include "backends/gloo/route.h"
#endif
#ifdef LOCKSTEP_HAS_NCCL
#include "backends/nccl/nccl_backend.h"
#endif

namespace lockstep::backends {
namespace {

using Factory = std::function<BackendHandle(const BackendRequest&)>;

BackendHandle create_fake(const BackendRequest& request) {
  return {.backend = c10::make_intrusive<FakeBackend>(request.rank, request.size),
          .traits = FakeBackend::traits()};
}

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> all{
      {"fake", create_fake},
      {"shm", create_shm},
#ifdef LOCKSTEP_HAS_GLOO
      {"gloo", create_gloo},
#endif
#ifdef LOCKSTEP_HAS_NCCL
      {"nccl", create_nccl},
#endif
  };
  return all;
}

// Names that PyTorch users know, with the reason why they can be missing.
const std::map<std::string, std::string>& known_elsewhere() {
  static const std::map<std::string, std::string> all{
      {"gloo", "it was left out of this build (LOCKSTEP_WITH_GLOO=OFF)"},
      {"nccl",
       "it needs a LibTorch that was built with CUDA and NCCL; on the CPU take shm (one host) or gloo, or "
       "leave "
       "the choice to \"auto\""},
      {"mpi", "it needs MPI, which this build was made without"},
  };
  return all;
}

// Those that carry tensors of one kind of device only; the others carry the CPU's.
bool is_for_gpus(const std::string& name) { return name == "nccl"; }

bool is_known(const std::string& name) {
  return factories().contains(name) || known_elsewhere().contains(name);
}

void require_built(const std::string& name) {
  if (factories().contains(name)) return;
  const auto there = fmt::format("this build has: {}", fmt::join(available_backends(), ", "));
  if (const auto known = known_elsewhere().find(name); known != known_elsewhere().end()) {
    throw ArgumentError(fmt::format("backend {} is not built: {}; {}", name, known->second, there));
  }
  throw ArgumentError(fmt::format("there is no backend named \"{}\"; {}", name, there));
}

BackendChoice best_on_cpu(bool one_host) {
  if (one_host) return {"shm", "all ranks share this host"};
  if (factories().contains("gloo")) return {"gloo", "the ranks are spread over several hosts"};
  throw ArgumentError(
      "the ranks are spread over several hosts, and the backend for that, gloo, was left out of this "
      "build");
}

// What carries a device's tensors: a name, or that of the CPU's backend where they go by way of host memory.
BackendChoice best_for(const Whereabouts& ranks) {
  auto choice = best_on_cpu(ranks.one_host);
  if (ranks.device.is_cpu()) return choice;
  const bool direct = ranks.device.is_cuda() && !ranks.share_device;
  const auto kind = kind_name(ranks.device.type());
  choice.reason += direct ? "; nccl for its GPUs"
                          : fmt::format("; {} tensors go by way of host memory{}", kind,
                                        ranks.share_device ? ", since ranks share a device" : "");
  choice.name = BackendList({{"cpu", choice.name}, {kind, direct ? "nccl" : choice.name}}).text();
  return choice;
}

void check_device(const std::string& name, const Whereabouts& ranks) {
  if (!is_for_gpus(name)) return;
  if (!ranks.device.is_cuda()) {
    throw ArgumentError(fmt::format(
        "backend {} carries GPU tensors only, and this rank's device is {}: no CUDA device can be used here, "
        "or "
        "another was asked for; on the CPU take shm (one host) or gloo, or leave the choice to \"auto\"",
        name, ranks.device.str()));
  }
  if (ranks.share_device) {
    throw ArgumentError(fmt::format(
        "backend {} cannot connect ranks that share a GPU; take \"auto\", gloo or shm, with which "
        "they go by way of host memory",
        name));
  }
}

// A name alone: PyTorch's gloo takes tensors of GPUs too.
BackendChoice one_for_all(const std::string& name, const Whereabouts& ranks) {
  require_built(name);
  check_device(name, ranks);
  if (ranks.device.is_cpu() || is_for_gpus(name) || name == "fake") return {name};
  return {BackendList({{"cpu", name}, {kind_name(ranks.device.type()), name}}).text()};
}

BackendChoice from_list(const std::string& text, const Whereabouts& ranks) {
  const auto list = BackendList::parse(text);
  for (const auto& name : list.names()) {
    if (!is_known(name)) require_built(name);
  }
  const auto own = list.find(ranks.device.type());
  if (!own) {
    throw ArgumentError(
        fmt::format("backend \"{}\" names none for {} tensors", text, kind_name(ranks.device.type())));
  }
  require_built(*own);
  check_device(*own, ranks);
  const auto host = list.find(c10::kCPU);
  if (host && is_for_gpus(*host)) {
    throw ArgumentError(fmt::format("backend \"{}\": {} does not carry cpu tensors", text, *host));
  }
  if (ranks.device.is_cpu() || (!host && is_for_gpus(*own))) return {*own};
  if (host) require_built(*host);
  return {BackendList({{"cpu", host.value_or(*own)}, {kind_name(ranks.device.type()), *own}}).text()};
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
  if (name == host_name) return stage_through(host, kind);
  auto own = part_of(request, kind_name(kind));
  if (!is_for_gpus(name)) return stage_through(factories().at(name)(own), kind);
  own.one_host = false;  // they have met for the other part
  return factories().at(name)(own);
}

}  // namespace

std::vector<std::string> available_backends() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

BackendChoice resolve_backend(const std::string& wanted, const Whereabouts& ranks) {
  if (is_list(wanted)) return from_list(wanted, ranks);
  if (!wanted.empty() && wanted != "auto") return one_for_all(wanted, ranks);
  auto choice = best_for(ranks);
  if (is_list(choice.name)) require_built(*BackendList::parse(choice.name).find(ranks.device.type()));
  return choice;
}

bool is_for_cpu_only(const std::string& wanted) {
  if (wanted.empty() || wanted == "auto" || wanted == "fake") return false;
  return is_list(wanted) ? BackendList::parse(wanted).names().size() == 1 &&
                               BackendList::parse(wanted).find(c10::kCPU).has_value()
                         : !is_for_gpus(wanted);
}

void check_environment(const std::string& name, const Env& env) {
#ifdef LOCKSTEP_HAS_GLOO
  const auto names = is_list(name) ? BackendList::parse(name).names() : std::vector<std::string>{name};
  if (std::ranges::find(names, "gloo") == names.end()) return;
  if (const auto list = env.get("GLOO_SOCKET_IFNAME")) interfaces_named(*list);
#endif
}

BackendHandle create_backend(const std::string& name, const BackendRequest& request) {
  if (!is_list(name)) return factories().at(name)(request);
  const auto list = BackendList::parse(name);
  const auto host_name = *list.find(c10::kCPU);
  const auto own_name = *list.find(request.device.type());
  auto host = factories().at(host_name)(part_of(request, "cpu"));
  auto own = device_part(own_name, host_name, host, request);
  return join_by_device({std::move(host), std::move(own)});
}

}  // namespace lockstep::backends
