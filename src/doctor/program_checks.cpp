// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>

#include "doctor/checks.h"

namespace lockstep::doctor {
namespace {

using Optional = std::optional<Finding>;

Optional check_threads_variable(const Env& env, const machine::Processor& processor) {
  if (env.get("OMP_NUM_THREADS") != "1" || processor.usable < 2) return std::nullopt;
  return warning("OMP_NUM_THREADS",
                 fmt::format("is 1, so that every rank computes on 1 of {} cores", processor.usable),
                 "unset it: lockstep run shares the cores among the ranks");
}

Optional check_launch_blocking(const Env& env) {
  const auto value = env.get("CUDA_LAUNCH_BLOCKING");
  if (!value || value == "0") return std::nullopt;
  return warning("CUDA_LAUNCH_BLOCKING",
                 fmt::format("is {}: the host waits for every kernel, and nothing overlaps", *value),
                 "unset it unless you are looking for a failing kernel");
}

Optional check_proxy(const Env& env) {
  if (env.has("no_proxy") || env.has("NO_PROXY")) return std::nullopt;
  for (const char* name :
       {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    if (!env.has(name)) continue;
    return warning(name, fmt::format("sends requests between hosts through {}", *env.get(name)),
                   "name the hosts of the cluster in no_proxy");
  }
  return std::nullopt;
}

Optional check_master_port(const Env& env, const Ports& ports) {
  const auto value = env.get("MASTER_PORT");
  if (!value) return std::nullopt;
  if (!ports.master_port) {
    return problem("MASTER_PORT", fmt::format("is \"{}\", which is not a port", *value),
                   "unset it, or set a port");
  }
  if (ports.master_port_error.empty()) return std::nullopt;
  return problem("MASTER_PORT", "is taken: " + ports.master_port_error,
                 "unset it, so that the launcher finds a free one, or set another");
}

Optional check_rank_variables(const Env& env) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (!env.has(name)) continue;
    return warning(
        name,
        fmt::format("is {}: a program started by hand acts as a rank of a run, and waits for the others",
                    *env.get(name)),
        "unset RANK and WORLD_SIZE outside of runs");
  }
  return std::nullopt;
}

Optional check_debug_variable(const Env& env) {
  if (env.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL") return std::nullopt;
  return warning("TORCH_DISTRIBUTED_DEBUG", "is DETAIL: ranks compare every call before they run it",
                 "unset it for speed");
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
  for (auto& finding :
       {check_threads_variable(env, processor), check_launch_blocking(env), check_proxy(env),
        check_master_port(env, ports), check_rank_variables(env), check_debug_variable(env)}) {
    if (finding) findings.push_back(*finding);
  }
  if (findings.empty()) findings.push_back(ok("environment", "no variable that is known to hurt"));
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
  add({check_gpu_driver(facts.gpu_driver, devices.gpus)});
  add(check_gpus(devices.gpus));
  add(check_environment(env, facts.ports, devices.processor));
  return all;
}

}  // namespace lockstep::doctor
