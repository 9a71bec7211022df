// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/checks.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "doctor/host_checks.h"
#include "doctor/table.h"

namespace lockstep::doctor {
namespace {

// MASTER_PORT, if it is no port or is taken.
Findings check_master_port(const Env& env, const Ports& ports) {
  const auto value = env.get("MASTER_PORT");
  if (!value) return {};
  if (!ports.master_port) {
    return {problem("MASTER_PORT", fmt::format("is \"{}\", which is not a port", *value),
                    "unset it, or set a port")};
  }
  if (ports.master_port_error.empty()) return {};
  return {problem("MASTER_PORT", "is taken: " + ports.master_port_error,
                  "unset it, so that the launcher finds a free one, or set another")};
}

// The first of `names` that is set.
const char* first_set(const Env& env, std::initializer_list<const char*> names) {
  const auto* const found = std::ranges::find_if(names, [&](const char* name) { return env.has(name); });
  return found == names.end() ? nullptr : *found;
}

}  // namespace

Finding check_libtorch(const LibTorch& libtorch) {
  if (!libtorch.error.empty()) {
    return problem(
        "libtorch", libtorch.error,
        "build the target lockstep_doctor, or install Lockstep as a whole; LibTorch must lie where it "
        "did when Lockstep was built, or on LD_LIBRARY_PATH");
  }
  return ok("libtorch", fmt::format("{}, {}, {}", libtorch.version, libtorch.cpu_capability,
                                    libtorch.cuda.empty() ? "without CUDA" : "CUDA " + libtorch.cuda));
}

Findings check_backends(const LibTorch& libtorch) {
  Findings findings;
  for (const auto& name : libtorch.backends) {
    const auto trial = std::ranges::find(libtorch.trials, name, &BackendTrial::name);
    const auto check = "backend " + name;
    if (trial == libtorch.trials.end()) {
      findings.push_back(ok(check, "built"));
    } else if (trial->error.empty()) {
      findings.push_back(ok(check, "built, two processes reduced with it"));
    } else {
      findings.push_back(problem(check, trial->error,
                                 fmt::format("see the checks below; run it again by hand: lockstep run "
                                             "--nproc-per-node 2 lockstep-doctor all-reduce {}",
                                             name)));
    }
  }
  return findings;
}

Findings check_environment(const Env& env, const Ports& ports, const machine::Processor& processor) {
  Findings findings;
  if (env.get("OMP_NUM_THREADS") == "1" && processor.usable >= 2) {
    findings.push_back(
        warning("OMP_NUM_THREADS",
                fmt::format("is 1, so that every rank computes on 1 of {} cores", processor.usable),
                "unset it: lockstep run shares the cores among the ranks"));
  }
  if (const auto value = env.get("CUDA_LAUNCH_BLOCKING"); value && value != "0") {
    findings.push_back(
        warning("CUDA_LAUNCH_BLOCKING",
                fmt::format("is {}: the host waits for every kernel, and nothing overlaps", *value),
                "unset it unless you are looking for a failing kernel"));
  }
  const char* proxy =
      first_set(env, {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
  if (proxy != nullptr && !first_set(env, {"no_proxy", "NO_PROXY"})) {
    // Without its address, which may contain a password.
    findings.push_back(warning(proxy, "is set: requests between hosts go through a proxy",
                               "name the hosts of the cluster in no_proxy"));
  }
  for (const auto& finding : check_master_port(env, ports)) findings.push_back(finding);
  if (const char* name = first_set(env, {"RANK", "WORLD_SIZE"})) {
    findings.push_back(warning(
        name,
        fmt::format("is {}: a program started by hand acts as a rank of a run, and waits for the others",
                    *env.get(name)),
        "unset RANK and WORLD_SIZE outside of runs"));
  }
  if (env.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL") {
    findings.push_back(warning("TORCH_DISTRIBUTED_DEBUG",
                               "is DETAIL: ranks compare every call before they run it",
                               "unset it for speed"));
  }
  if (findings.empty()) findings.push_back(ok("environment", "no variable that is known to hurt"));
  return findings;
}

namespace {

constexpr const char* kFirewall =
    "look at the firewall (iptables -L, nft list ruleset) and at the container's network";

std::vector<std::string> names_in(const std::string& list) {
  auto names = split(list, ',');
  std::erase(names, "");
  return names;
}

bool is_ours(const Network& network, const std::string& address) {
  return std::ranges::any_of(network.interfaces, [&](const Interface& interface) {
    return std::ranges::find(interface.addresses, address) != interface.addresses.end();
  });
}

std::string all_names(const Network& network) {
  std::vector<std::string> names;
  for (const auto& interface : network.interfaces) names.push_back(interface.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Finding check_interface_list(const Network& network, const std::string& variable, const std::string& value,
                             const std::vector<std::string>& names, bool by_prefix) {
  for (const auto& name : names) {
    const auto fits = [&](const Interface& interface) {
      return interface.up && (by_prefix ? interface.name.starts_with(name) : interface.name == name);
    };
    if (std::ranges::any_of(network.interfaces, fits)) continue;
    return problem(variable, fmt::format("is \"{}\", but no interface {} is up", value, name),
                   fmt::format("unset it, or name one of: {}", all_names(network)));
  }
  return ok(variable, fmt::format("\"{}\" is up", value));
}

// NCCL takes name prefixes, "=" before the list for exact names, and "^" for all other interfaces.
Finding check_nccl_interfaces(const Network& network, const std::string& value) {
  if (value.starts_with('^')) return ok("NCCL_SOCKET_IFNAME", fmt::format("leaves out {}", value.substr(1)));
  const bool exact = value.starts_with('=');
  return check_interface_list(network, "NCCL_SOCKET_IFNAME", value, names_in(value.substr(exact ? 1 : 0)),
                              !exact);
}

}  // namespace

Finding check_loopback(const Ports& ports) {
  if (ports.loopback_error.empty()) return ok("loopback", "connections within this host work");
  return problem("loopback", ports.loopback_error,
                 fmt::format("enable the interface (ip link set lo up); {}", kFirewall));
}

Finding check_own_address(const Ports& ports) {
  if (ports.own_address.empty()) {
    return warning("own address", "no interface besides loopback has an address",
                   "no action for one host; for several, configure the network (ip addr, ip link)");
  }
  if (ports.own_error.empty())
    return ok("own address", fmt::format("{} accepts connections", ports.own_address));
  return problem("own address", ports.own_error, kFirewall);
}

Findings check_port(const Ports& ports) {
  if (!ports.port) return {};
  const auto name = fmt::format("port {}", *ports.port);
  if (ports.port_error.empty()) return {ok(name, "free")};
  return {problem(
      name, ports.port_error,
      fmt::format("find its owner (ss -ltnp 'sport = :{}') and end it, or use another port", *ports.port))};
}

Finding check_interfaces(const Network& network) {
  std::vector<std::string> up;
  for (const auto& interface : network.interfaces) {
    if (!interface.up || interface.addresses.empty()) continue;
    up.push_back(fmt::format("{} ({})", interface.name, fmt::join(interface.addresses, ", ")));
  }
  if (!up.empty()) return ok("interfaces", fmt::format("{}", fmt::join(up, ", ")));
  return problem("interfaces", "none is up", "enable the interfaces (ip link set lo up, ip addr)");
}

Finding check_host_name(const Network& network) {
  const auto remedy = fmt::format(
      "add a line \"ADDRESS {}\" with an address of this host to /etc/hosts, or correct the DNS; or set "
      "GLOO_SOCKET_IFNAME and --master-addr",
      network.host_name);
  if (!network.resolve_error.empty()) return warning("host name", network.resolve_error, remedy);
  const auto addresses = fmt::format("{}", fmt::join(network.resolved, ", "));
  const bool ours = std::ranges::any_of(
      network.resolved, [&](const auto& one) { return is_ours(network, one) || one.starts_with("127."); });
  if (ours) return ok("host name", fmt::format("{} is {}", network.host_name, addresses));
  return problem(
      "host name",
      fmt::format("{} resolves to {}, which is not an address of this host", network.host_name, addresses),
      remedy);
}

Findings check_interface_variables(const Network& network, const Env& env) {
  Findings findings;
  if (const auto value = env.get("GLOO_SOCKET_IFNAME")) {
    findings.push_back(check_interface_list(network, "GLOO_SOCKET_IFNAME", *value, names_in(*value), false));
  }
  if (const auto value = env.get("NCCL_SOCKET_IFNAME"))
    findings.push_back(check_nccl_interfaces(network, *value));
  return findings;
}

Findings check_all(const Facts& facts, const Env& env) {
  Findings all;
  const auto add = [&](const Findings& findings) { all.insert(all.end(), findings.begin(), findings.end()); };
  const auto& devices = facts.devices;
  const auto& limits = facts.limits;
  add({check_libtorch(facts.libtorch), check_cuda(facts.libtorch, devices.gpus)});
  add(check_backends(facts.libtorch));
  add({check_loopback(facts.ports), check_own_address(facts.ports)});
  add(check_port(facts.ports));
  add({check_interfaces(facts.network), check_host_name(facts.network)});
  add(check_interface_variables(facts.network, env));
  add({check_cores(devices.processor), check_memory(devices.memory), check_memfd(facts.shared_memory),
       check_dev_shm(facts.shared_memory, !devices.gpus.gpus.empty()), check_clock(facts.clock)});
  add({check_open_files(limits), check_processes(limits), check_locked_memory(limits),
       check_core_files(limits)});
  add(check_process_limits(facts.process));
  add({check_gpu_driver(facts.gpu_driver, devices.gpus)});
  add(check_gpus(devices.gpus));
  add(check_environment(env, facts.ports, devices.processor));
  return all;
}

}  // namespace lockstep::doctor
