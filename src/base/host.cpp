// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include <lockstep/base/host.h>

namespace lockstep {
namespace {

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// cgroup v2 writes "<quota|max> <period>", both in microseconds.
int quota_cores(int fallback) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return fallback;
  return static_cast<int>(std::ceil(std::stod(quota) / period));
}

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

int usable_cores() {
  const int cores = std::max(1, affinity_cores());
  return std::clamp(quota_cores(cores), 1, cores);
}

}  // namespace lockstep
