// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/facts.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/env.h"
#include "base/host.h"
#include "base/limits.h"
#include "base/shared_memory.h"
#include "base/text.h"
#include "doctor/peers.h"
#include "machine/command.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

int entries_in(const fs::path& folder) {
  std::error_code absent;
  const fs::directory_iterator entries(folder, absent);
  return absent ? 0 : static_cast<int>(std::distance(begin(entries), end(entries)));
}

// Why a file in `folder` cannot be written; empty: it can.
std::string try_writing(const std::string& folder) {
  const FileSizeErrors as_errors;
  std::string name = folder + "/lockstep-doctor-XXXXXX";
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) return errno_text(errno);
  ::unlink(name.c_str());
  const std::string page(4096, '\n');
  return ::write(file.get(), page.data(), page.size()) < 0 ? errno_text(errno) : "";
}

}  // namespace

SharedMemoryFacts try_shared_memory() {
  constexpr std::size_t page = 4096;
  constexpr std::size_t least = 4 << 20;  // what each rank needs for the groups of two
  SharedMemoryFacts facts;
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) == 0) {
    facts.dev_shm_total = std::uint64_t{status.f_blocks} * status.f_frsize;
    facts.dev_shm_free = std::uint64_t{status.f_bavail} * status.f_frsize;
  }
  try {
    const auto memory = SharedMemory::create("lockstep-doctor", std::max(shareable_bytes(2), least));
    memory.commit(0, page, "a check");
  } catch (const Error& error) {
    facts.memfd_error = error.what();
  }
  return facts;
}

Clock read_clock() {
  timex state{};
  const int outcome = ::adjtimex(&state);
  if (outcome < 0) return {.error = errno_text(errno)};
  return {.synchronized = outcome != TIME_ERROR && (state.status & STA_UNSYNC) == 0};
}

Limits read_limits() {
  return {.open_files = soft_limit(RLIMIT_NOFILE),
          .processes = soft_limit(RLIMIT_NPROC),
          .locked_memory = soft_limit(RLIMIT_MEMLOCK),
          .pids = Cgroups().pids_limit(),
          .core_size = soft_limit(RLIMIT_CORE),
          .core_pattern = first_line("/proc/sys/kernel/core_pattern"),
          .has_rdma = entries_in("/sys/class/infiniband") > 0};
}

ProcessLimits read_process_limits() {
  ProcessLimits limits{.file_size = soft_limit(RLIMIT_FSIZE),
                       .address_space = soft_limit(RLIMIT_AS),
                       .cpu_time = soft_limit(RLIMIT_CPU),
                       .address_shortage = address_space_shortage(),
                       .stack = stack_shortage(),
                       .shareable = shareable_bytes(2),
                       .temporary_folder = Env().get("TMPDIR").value_or("/tmp")};
  const std::uint64_t source = 1;
  std::uint64_t copy = 0;
  limits.reads_memory = read_process_memory(::getpid(), reinterpret_cast<std::uintptr_t>(&source),
                                            std::as_writable_bytes(std::span(&copy, 1)));
  limits.has_proc = !first_line("/proc/self/stat").empty();
  limits.temporary_error = try_writing(limits.temporary_folder);
  return limits;
}

GpuDriver read_gpu_driver() {
  return {.version = first_line("/proc/driver/nvidia/version"),
          .devices = entries_in("/proc/driver/nvidia/gpus")};
}

namespace {

constexpr std::chrono::seconds kNetworkLimit{10};

// What the host's name means, where that is an address of ours, else that of any interface.
std::string own_address(const Network& network) {
  std::string first;
  for (const auto& interface : network.interfaces) {
    if (!interface.up || interface.loopback) continue;
    for (const auto& address : interface.addresses) {
      if (std::ranges::find(network.resolved, address) != network.resolved.end()) return address;
      // A link-local one needs its interface besides.
      if (first.empty() && !address.starts_with("fe80:")) first = address;
    }
  }
  return first;
}

std::string try_connection(const std::string& address_text) {
  try {
    const Deadline deadline(kNetworkLimit);
    const auto listener = listen_at(resolve(address_text, deadline).at(0));
    const auto connection = connected_socket(address_of(listener.get()), deadline);
    return wait_for(listener.get(), POLLIN, deadline) ? "" : "the connection never arrived";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string try_listening(std::optional<int> port) {
  if (!port) return "";
  try {
    (void)listen_at(any_address().with_port(*port));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::optional<int> master_port() {
  try {
    const auto port = Env().get_int("MASTER_PORT");
    return port && *port > 0 && *port <= 65535 ? std::optional(static_cast<int>(*port)) : std::nullopt;
  } catch (const ArgumentError&) {
    return std::nullopt;  // check_master_port() tells of it
  }
}

}  // namespace

Network read_network() {
  Network network{.interfaces = network_interfaces(), .host_name = host_name()};
  try {
    std::set<std::string> addresses;
    for (const auto& address : resolve(network.host_name, Deadline(kNetworkLimit))) {
      const auto text = address.text();
      addresses.insert(text.substr(0, text.find('%')));  // as network_interfaces() has it
    }
    network.resolved.assign(addresses.begin(), addresses.end());
  } catch (const Error& error) {
    network.resolve_error = error.what();
  }
  return network;
}

Ports try_ports(const Network& network, std::optional<int> port) {
  Ports ports{.loopback_error = try_connection("127.0.0.1"),
              .own_address = own_address(network),
              .port = port,
              .port_error = try_listening(port),
              .master_port = master_port()};
  ports.master_port_error = try_listening(ports.master_port);
  if (!ports.own_address.empty()) ports.own_error = try_connection(ports.own_address);
  return ports;
}

namespace {

// LibTorch may come from a slow file system.
constexpr std::chrono::seconds kLibTorchLimit{120};

std::string doctor_program() { return own_program().replace_filename("lockstep-doctor").string(); }

LibTorch describe() {
  LibTorch libtorch;
  if (const auto shortage = address_space_shortage()) {
    libtorch.error = "not tried: " + shortage->text;
    return libtorch;
  }
  const auto answer = machine::run_command({doctor_program(), "describe"}, kLibTorchLimit);
  libtorch.error = answer.problem;
  if (!answer.succeeded()) return libtorch;
  try {
    const auto document = nlohmann::json::parse(answer.out);
    libtorch.version = document.at("libtorch");
    libtorch.cpu_capability = document.at("cpu_capability");
    libtorch.cuda = document.at("cuda");
    libtorch.cuda_devices = document.at("cuda_devices");
    libtorch.backends = document.at("backends");
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
  return first_line_of(std::string_view(answer.err).substr(begin + mark.size()));
}

// As users do it: through the launcher, so that this tries the launcher, too.
BackendTrial try_backend(const std::string& name) {
  const auto answer = machine::run_command(
      {own_program().string(), "run", "--nproc-per-node", "2", "--", doctor_program(), "all-reduce", name},
      kLibTorchLimit);
  return {.name = name, .error = answer.succeeded() ? "" : rank_error(answer)};
}

// Others need devices or hosts that a check cannot take for granted.
bool can_be_tried(const std::string& backend) { return backend == "gloo" || backend == "shm"; }

}  // namespace

LibTorch try_libtorch(const Limits& limits) {
  constexpr std::uint64_t enough = 64;
  auto libtorch = describe();
  std::vector<std::future<BackendTrial>> trials;
  // Where processes are few, one after the other: they must not take what another one needs.
  const bool few = std::min(limits.processes.value_or(enough), limits.pids.value_or(enough)) < enough;
  const auto when = few ? std::launch::deferred : std::launch::async | std::launch::deferred;
  for (const auto& backend : libtorch.backends) {
    if (can_be_tried(backend)) trials.push_back(std::async(when, try_backend, backend));
  }
  for (auto& trial : trials) libtorch.trials.push_back(trial.get());
  return libtorch;
}

Facts read_facts(std::optional<int> port) {
  auto network = std::async(read_network);
  Facts facts{.version = lockstep::version(), .devices = read_devices()};
  facts.network = network.get();
  facts.ports = try_ports(facts.network, port);
  facts.shared_memory = try_shared_memory();
  facts.clock = read_clock();
  facts.limits = read_limits();
  facts.process = read_process_limits();
  facts.gpu_driver = read_gpu_driver();
  facts.libtorch = try_libtorch(facts.limits);
  return facts;
}

}  // namespace lockstep::doctor
