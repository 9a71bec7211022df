// SPDX-License-Identifier: BSD-3-Clause
// What the program lockstep-doctor says, which links LibTorch and lies beside this one.
#include <filesystem>
#include <future>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "doctor/facts.h"
#include "machine/command.h"

namespace lockstep::doctor {
namespace {

// LibTorch may come from a slow file system.
constexpr std::chrono::seconds kLibTorchLimit{120};

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string doctor_program() {
  return (std::filesystem::path(own_program()).parent_path() / "lockstep-doctor").string();
}

void read_description(const nlohmann::json& document, LibTorch& libtorch) {
  libtorch.version = document.at("libtorch");
  libtorch.cpu_capability = document.at("cpu_capability");
  libtorch.cuda = document.at("cuda");
  libtorch.cuda_devices = document.at("cuda_devices");
  libtorch.backends = document.at("backends");
}

LibTorch describe() {
  LibTorch libtorch;
  const auto answer = machine::run_command({doctor_program(), "describe"}, kLibTorchLimit);
  libtorch.error = answer.problem;
  if (!answer.succeeded()) return libtorch;
  try {
    read_description(nlohmann::json::parse(answer.out), libtorch);
  } catch (const nlohmann::json::exception& error) {
    libtorch.error = fmt::format("{} has another version: {}", doctor_program(), error.what());
  }
  return libtorch;
}

// What the first rank that said something said, without the marks of launcher and program.
std::string rank_error(const machine::CommandResult& answer) {
  constexpr std::string_view mark = "lockstep-doctor: ";
  const auto begin = answer.err.find(mark);
  if (begin == std::string::npos) return answer.problem;
  const auto text = answer.err.substr(begin + mark.size());
  return text.substr(0, text.find('\n'));
}

// As users do it: through the launcher, so that this tries the launcher, too.
BackendTrial try_backend(const std::string& name) {
  const auto answer = machine::run_command(
      {own_program(), "run", "--nproc-per-node", "2", "--", doctor_program(), "all-reduce", name},
      kLibTorchLimit);
  return {.name = name, .error = answer.succeeded() ? "" : rank_error(answer)};
}

// Others need devices or hosts that a check cannot take for granted.
bool can_be_tried(const std::string& backend) { return backend == "gloo" || backend == "shm"; }

}  // namespace

LibTorch try_libtorch() {
  auto libtorch = describe();
  std::vector<std::future<BackendTrial>> trials;
  for (const auto& backend : libtorch.backends) {
    if (can_be_tried(backend)) trials.push_back(std::async(std::launch::async, try_backend, backend));
  }
  for (auto& trial : trials) libtorch.trials.push_back(trial.get());
  return libtorch;
}

Facts read_facts(std::optional<int> port) {
  auto network = std::async(std::launch::async, read_network);
  Facts facts{.version = LOCKSTEP_VERSION, .devices = read_devices()};
  facts.network = network.get();
  facts.ports = try_ports(facts.network, port);
  facts.shared_memory = try_shared_memory();
  facts.clock = read_clock();
  facts.limits = read_limits();
  facts.gpu_driver = read_gpu_driver();
  facts.libtorch = try_libtorch();
  return facts;
}

}  // namespace lockstep::doctor
