// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/backends/fake.h>
#include <lockstep/backends/registry.h>
#include <lockstep/base/error.h>

#include "backends/shm/shm_backend.h"
#ifdef LOCKSTEP_HAS_GLOO
#include "backends/gloo/gloo_backend.h"
#include "backends/gloo/route.h"
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
  };
  return all;
}

// Names that PyTorch users know, with the reason why they can be missing.
const std::map<std::string, std::string>& known_elsewhere() {
  static const std::map<std::string, std::string> all{
      {"gloo", "it was left out of this build (LOCKSTEP_WITH_GLOO=OFF)"},
      {"nccl", "it needs a LibTorch that was built with CUDA and NCCL"},
      {"mpi", "it needs MPI, which this build was made without"},
  };
  return all;
}

}  // namespace

std::vector<std::string> available_backends() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

namespace {

void require_built(const std::string& name) {
  if (factories().contains(name)) return;
  const auto there = fmt::format("this build has: {}", fmt::join(available_backends(), ", "));
  if (const auto known = known_elsewhere().find(name); known != known_elsewhere().end()) {
    throw ArgumentError(fmt::format("backend {} is not built: {}; {}", name, known->second, there));
  }
  throw ArgumentError(fmt::format("there is no backend named \"{}\"; {}", name, there));
}

BackendChoice best_for(const c10::Device& device, bool one_host) {
  if (device.is_cuda()) return {"nccl", "the device is a GPU"};
  if (one_host) return {"shm", "all ranks share this host"};
  return {"gloo", "the ranks are spread over several hosts"};
}

// "cpu:gloo,cuda:nccl": the entry for the device's kind.
std::string entry_for(const std::string& list, const c10::Device& device) {
  const auto kind = c10::DeviceTypeName(device.type(), true);
  std::istringstream entries(list);
  std::string entry;
  std::string found;
  while (std::getline(entries, entry, ',')) {
    const auto colon = entry.find(':');
    const auto name = colon == std::string::npos ? std::string() : entry.substr(colon + 1);
    if (!factories().contains(name) && !known_elsewhere().contains(name)) {
      throw ArgumentError(fmt::format(
          "backend \"{}\": \"{}\" is not of the form device:backend, as in \"cpu:gloo,cuda:nccl\"", list,
          entry));
    }
    if (entry.substr(0, colon) == kind) found = name;
  }
  if (found.empty()) throw ArgumentError(fmt::format("backend \"{}\" names none for {} tensors", list, kind));
  return found;
}

}  // namespace

BackendChoice resolve_backend(const std::string& wanted, const c10::Device& device, bool one_host) {
  auto choice = wanted.empty() || wanted == "auto"      ? best_for(device, one_host)
                : wanted.find(':') != std::string::npos ? BackendChoice{entry_for(wanted, device)}
                                                        : BackendChoice{wanted};
  if (choice.name == "gloo" && !choice.reason.empty() && !factories().contains("gloo")) {
    throw ArgumentError(
        "the ranks are spread over several hosts, and the backend for that, gloo, was left out of this "
        "build");
  }
  require_built(choice.name);
  return choice;
}

void check_environment(const std::string& name, const Env& env) {
  if (name != "gloo") return;
#ifdef LOCKSTEP_HAS_GLOO
  if (const auto list = env.get("GLOO_SOCKET_IFNAME")) interfaces_named(*list);
#endif
}

BackendHandle create_backend(const std::string& name, const BackendRequest& request) {
  return factories().at(name)(request);
}

}  // namespace lockstep::backends
