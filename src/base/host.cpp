// SPDX-License-Identifier: BSD-3-Clause
#include "base/host.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include "base/cgroup.h"

namespace lockstep {
namespace {

// Holds more CPUs than any machine has today; the kernel refuses a mask that is smaller than its own.
constexpr int kMostCpus = 1 << 16;

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

std::string host_name() {
  std::array<char, 256> buffer{};
  if (::gethostname(buffer.data(), buffer.size() - 1) != 0) return "unknown-host";
  return buffer.data();
}

std::string host_identity() {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  std::error_code ignored;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  return boot_id + "/" + network.string();
}

std::vector<int> affinity_cpus() {
  const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(kMostCpus));
  const auto bytes = CPU_ALLOC_SIZE(kMostCpus);
  std::vector<int> cpus;
  if (set && ::sched_getaffinity(0, bytes, set.get()) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) {
    cpus.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cpus.begin(), cpus.end(), 0);
  }
  return cpus;
}

int usable_cores() {
  const auto cores = static_cast<int>(affinity_cpus().size());
  const double quota = Cgroups().cpu_quota().value_or(cores);
  return quota >= cores ? cores : std::max(1, static_cast<int>(std::ceil(quota)));
}

}  // namespace lockstep
