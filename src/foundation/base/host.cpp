// SPDX-License-Identifier: BSD-3-Clause
#include "base/host.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <sched.h>
#include <sys/auxv.h>
#include <thread>
#include <unistd.h>

#include "base/env.h"
#include "base/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

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
  std::error_code ignored;
  const auto network = fs::read_symlink("/proc/self/ns/net", ignored);
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + network.string();
}

std::string memory_identity() {
  const auto named = Env().get("LOCKSTEP_HOST_ID");
  return named ? "LOCKSTEP_HOST_ID=" + *named : host_identity();
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

fs::path own_program() {
  std::error_code no_proc;
  const auto program = fs::read_symlink("/proc/self/exe", no_proc);
  if (!no_proc) return program;
  // Without /proc, the path with which this program was started.
  const auto* const started_as = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  const auto absolute = fs::absolute(started_as == nullptr ? "" : started_as, no_proc);
  return fs::exists(absolute, no_proc) ? absolute : fs::path(started_as == nullptr ? "" : started_as);
}

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::optional<std::uint64_t> meminfo_bytes(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string word; stream >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == key + ":" && stream >> kibibytes) return kibibytes * 1024;
  }
  return std::nullopt;
}

namespace {

// Version 1 writes the largest multiple of a page instead of "no limit".
constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 62;

// A line of /proc/<pid>/cgroup: "4:cpu,cpuacct:/path", for version 2 "0::/path".
struct Membership {
  bool unified = false;
  std::vector<std::string> controllers{};
  std::string path{};
};

std::vector<Membership> read_memberships(const fs::path& file) {
  std::vector<Membership> all;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto names = line.substr(first + 1, second - first - 1);
    all.push_back(
        {.unified = names.empty(), .controllers = split(names, ','), .path = line.substr(second + 1)});
  }
  return all;
}

// A line of /proc/<pid>/mountinfo that mounts groups.
struct Mount {
  bool unified = false;
  std::string root{};  // the group that is seen at the mount point
  fs::path point{};
  std::vector<std::string> options{};
};

// The kernel writes a space in a path as "\040".
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto code = text.substr(at + 1, 3);
    if (text[at] == '\\' && code.size() == 3 && code.find_first_not_of("01234567") == std::string::npos) {
      plain += static_cast<char>(std::stoi(code, nullptr, 8));
      at += 3;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

// "36 25 0:28 <root> <mount point> <options> [<more>...] - <type> <source> <super options>"
std::optional<Mount> parse_mount(const std::string& line) {
  const auto dash = line.find(" - ");
  if (dash == std::string::npos) return std::nullopt;
  const auto front = split(line.substr(0, dash), ' ');
  const auto back = split(line.substr(dash + 3), ' ');
  if (front.size() < 6 || back.size() < 3 || !back[0].starts_with("cgroup")) return std::nullopt;
  return Mount{.unified = back[0] == "cgroup2",
               .root = unescaped(front[3]),
               .point = unescaped(front[4]),
               .options = split(back[2], ',')};
}

bool belongs(const Membership& membership, const Mount& mount) {
  if (membership.unified || mount.unified) return membership.unified == mount.unified;
  return std::ranges::any_of(membership.controllers, [&](const std::string& controller) {
    return std::ranges::find(mount.options, controller) != mount.options.end();
  });
}

// In a container the process's group may lie outside the mount; only the mount point can be read then.
fs::path below_mount(const std::string& group, const std::string& root) {
  const auto relative = fs::path(group).lexically_relative(root);
  if (relative.empty() || *relative.begin() == "..") return ".";
  return relative;
}

std::vector<fs::path> folders_up_to(const fs::path& point, const fs::path& relative) {
  std::vector<fs::path> folders;
  for (fs::path rest = relative; !rest.empty() && rest != "."; rest = rest.parent_path()) {
    folders.push_back(point / rest);
  }
  folders.push_back(point);
  return folders;
}

// Version 2: "<quota|max> <period>"; version 1: two files, the quota -1 for none. In microseconds.
std::optional<double> quota_of(const fs::path& folder, bool unified) {
  double quota = 0;
  double period = 0;
  if (unified) {
    std::ifstream file(folder / "cpu.max");
    if (!(file >> quota >> period)) return std::nullopt;
  } else if (!(std::ifstream(folder / "cpu.cfs_quota_us") >> quota) ||
             !(std::ifstream(folder / "cpu.cfs_period_us") >> period)) {
    return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<std::uint64_t> memory_limit_of(const fs::path& folder, bool unified) {
  const auto limit = number_in<std::uint64_t>(folder / (unified ? "memory.max" : "memory.limit_in_bytes"));
  return limit && *limit < kNoMemoryLimit ? limit : std::nullopt;
}

std::optional<std::uint64_t> memory_left_of(const fs::path& folder, bool unified) {
  const auto limit = memory_limit_of(folder, unified);
  if (!limit) return std::nullopt;
  const auto used =
      number_in<std::uint64_t>(folder / (unified ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
  return *limit - std::min(*limit, used);
}

std::optional<std::uint64_t> pids_limit_of(const fs::path& folder, bool) {
  return number_in<std::uint64_t>(folder / "pids.max");
}

template <typename Hierarchies, typename Limit>
auto least(const Hierarchies& hierarchies, Limit limit_of) {
  decltype(limit_of(fs::path(), false)) smallest;
  for (const auto* hierarchy : hierarchies) {
    for (const auto& folder : hierarchy->folders) {
      const auto limit = limit_of(folder, hierarchy->unified);
      if (limit && (!smallest || *limit < *smallest)) smallest = limit;
    }
  }
  return smallest;
}

}  // namespace

Cgroups::Cgroups(const fs::path& process) {
  const auto memberships = read_memberships(process / "cgroup");
  std::ifstream mounts(process / "mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto mount = parse_mount(line);
    if (!mount) continue;
    for (const auto& membership : memberships) {
      if (!belongs(membership, *mount)) continue;
      hierarchies_.push_back(
          {.unified = mount->unified,
           .controllers = membership.controllers,
           .folders = folders_up_to(mount->point, below_mount(membership.path, mount->root))});
    }
  }
}

std::vector<const Cgroups::Hierarchy*> Cgroups::with(const std::string& controller) const {
  std::vector<const Hierarchy*> found;
  for (const auto& hierarchy : hierarchies_) {
    const auto& names = hierarchy.controllers;
    if (hierarchy.unified || std::ranges::find(names, controller) != names.end()) found.push_back(&hierarchy);
  }
  return found;
}

std::optional<double> Cgroups::cpu_quota() const { return least(with("cpu"), quota_of); }

std::optional<std::uint64_t> Cgroups::memory_limit() const { return least(with("memory"), memory_limit_of); }

std::optional<std::uint64_t> Cgroups::memory_left() const { return least(with("memory"), memory_left_of); }

std::optional<std::uint64_t> Cgroups::pids_limit() const { return least(with("pids"), pids_limit_of); }

}  // namespace lockstep
