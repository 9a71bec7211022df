// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/backends/fake.h>
#include <lockstep/backends/registry.h>
#include <lockstep/base/error.h>

#include "backends/shm/shm_backend.h"
#ifdef LOCKSTEP_HAS_GLOO
#include "backends/gloo/gloo_backend.h"
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

std::string resolve_backend(const std::string& name, const c10::Device& device) {
  if (name == "auto") return resolve_backend(device.is_cuda() ? "nccl" : "gloo", device);
  if (factories().contains(name)) return name;
  const auto there = fmt::format("this build has: {}", fmt::join(available_backends(), ", "));
  if (const auto known = known_elsewhere().find(name); known != known_elsewhere().end()) {
    throw ArgumentError(fmt::format("backend {} is not built: {}; {}", name, known->second, there));
  }
  throw ArgumentError(fmt::format("there is no backend named \"{}\"; {}", name, there));
}

BackendHandle create_backend(const std::string& name, const BackendRequest& request) {
  return factories().at(name)(request);
}

}  // namespace lockstep::backends
