// SPDX-License-Identifier: BSD-3-Clause
#include "observe/find_runs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/version.h>

#include "base/text.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "base/version.h"

namespace lockstep::observe {
namespace {

using File = decltype(MappedMemory::file);

// Read-only. nullptr if the file is none of ours: memory that can shrink would be a SIGBUS.
template <class Layout>
std::shared_ptr<const Layout> map_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  const int seals = fd ? ::fcntl(fd.get(), F_GET_SEALS) : -1;
  const bool fits = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd.get(), &status) == 0 &&
                    static_cast<std::size_t>(status.st_size) >= sizeof(Layout);
  if (!fits) return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(Layout), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<const Layout*>(memory),
          [](const Layout* mapped) { ::munmap(const_cast<Layout*>(mapped), sizeof(Layout)); }};
}

// For a rank that has ended, whose memory others have only mapped. Needs the right to trace the process.
std::shared_ptr<const Segment> copy_memory(int pid, std::uint64_t address) {
  struct alignas(Segment) Copy {
    std::array<std::byte, sizeof(Segment)> bytes{};
  };
  const UniqueFd fd(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDONLY | O_CLOEXEC));
  const auto copy = std::make_shared<Copy>();
  auto& bytes = copy->bytes;
  const auto count = fd ? ::pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(address)) : -1;
  if (count != static_cast<ssize_t>(bytes.size())) return nullptr;
  return {copy, reinterpret_cast<const Segment*>(bytes.data())};
}

using Mappings = std::vector<std::pair<const Process*, const MappedMemory*>>;

std::shared_ptr<const Segment> segment_in(const Mappings& mappings) {
  for (const auto& [process, memory] : mappings) {
    const auto path = open_file_of(process->pid, *memory);
    if (auto segment = path ? map_file<Segment>(*path) : nullptr) return segment;
  }
  for (const auto& [process, memory] : mappings) {
    if (auto segment = copy_memory(process->pid, memory->address)) return segment;
  }
  return nullptr;
}

// The number of the format in which a rank publishes; 0 for memory that is not (yet) a rank's.
std::uint64_t format_of(const Segment& segment) {
  return segment.status.mark.load(std::memory_order_acquire) == kStatusMark ? segment.recorder : 0;
}

std::string other_format(const Format& format, std::uint64_t number, int pid) {
  return fmt::format(
      "process {} publishes what it does in {} format {}, and this version of Lockstep, {}, reads {}: use the `lockstep` "
      "of the version with which the program was built",
      pid, format.name, number, version(), format.number);
}

// In another pid namespace the numbers of threads are others, too; the main thread's is the process's.
int visible_thread(const Process& process, std::int64_t pid, std::int64_t thread) {
  return thread == pid || process.pid != pid ? process.pid : static_cast<int>(thread);
}

Publication publication_of(const Mappings& mappings, std::shared_ptr<const RankStatus> status) {
  Publication publication{.group = mappings.front().second->name, .status = std::move(status)};
  for (const auto& [process, memory] : mappings) {
    const auto& own = *publication.status;
    if (process->inner_pid != own.pid) continue;
    publication.pid = process->pid;
    publication.thread = visible_thread(*process, own.pid, own.thread);
  }
  return publication;
}

// Sets of keys that are joined pair by pair.
template <class Key>
class Sets {
 public:
  Key set_of(const Key& key) {
    const auto parent = parents_.emplace(key, key).first->second;
    return parent == key ? key : parents_[key] = set_of(parent);
  }
  void join(const Key& one, const Key& other) {
    const auto root = set_of(one);
    parents_[root] = set_of(other);
  }

 private:
  std::map<Key, Key> parents_;
};

// Processes that share memory are of one run. If they share the memory of one name, they are in one group; groups of
// other processes may have the same name, as the parts of split_group() do.
class Runs {
 public:
  explicit Runs(const std::vector<Process>& processes) {
    for (const auto& process : processes) {
      for (const auto& memory : process.memory) {
        auto& mappings = mappings_[memory.file];
        mappings.emplace_back(&process, &memory);
        const int first = mappings.front().first->pid;
        runs_.join(process.pid, first);
        groups_.join({memory.name, process.pid}, {memory.name, first});
      }
      for (const auto& memory : process.progress) progress_.emplace_back(&process, &memory);
    }
  }

  std::vector<ObservedRun> take() {
    std::map<int, ObservedRun> runs;
    for (const auto& [file, mappings] : mappings_) {
      const auto segment = segment_in(mappings);
      const auto format = segment ? format_of(*segment) : 0;
      if (format == 0) continue;
      const int pid = mappings.front().first->pid;
      auto& run = runs[runs_.set_of(pid)];
      for (const auto& [process, memory] : mappings) run.pids.push_back(process->pid);
      if (format != formats::kFlightRecorder.number) {
        run.problem = other_format(formats::kFlightRecorder, format, pid);
        continue;
      }
      run.publications.push_back(publication_of(mappings, {segment, &segment->status}));
      run.publications.back().group = name_of_group(mappings.front().second->name, pid);
    }
    for (const auto& [process, memory] : progress_) add_progress(runs, *process, *memory);
    std::vector<ObservedRun> found;
    for (auto& [root, run] : runs) {
      keep_ranks(run);
      run.id = variable_of(run.pids.front(), "TORCHELASTIC_RUN_ID");
      if (run.id == "none") run.id.clear();
      for (const int pid : run.pids) {  // a rank that replaces another one has more than the others
        const auto restarts = parse_number<int>(variable_of(pid, "TORCHELASTIC_RESTART_COUNT"));
        run.restarts = std::max(run.restarts, restarts.value_or(0));
      }
      found.push_back(std::move(run));
    }
    return found;
  }

 private:
  // A process that has ended meanwhile, or that is about to publish, adds nothing.
  void add_progress(std::map<int, ObservedRun>& runs, const Process& process, const MappedMemory& memory) {
    const auto path = open_file_of(process.pid, memory);
    auto progress = path ? map_file<RankProgress>(*path) : nullptr;
    if (!progress || progress->mark.load(std::memory_order_acquire) != RankProgress::kMark) return;
    if (progress->pid != process.inner_pid) return;  // that of the process of which it was forked
    auto& run = runs[runs_.set_of(process.pid)];
    run.pids.push_back(process.pid);
    if (progress->format != formats::kRankProgress.number) {
      run.problem = other_format(formats::kRankProgress, progress->format, process.pid);
      return;
    }
    const int thread = visible_thread(process, progress->pid, progress->thread);
    run.progress.push_back({std::move(progress), process.pid, thread});
  }

  // Launchers and other processes that look have mapped the memory, too.
  static void keep_ranks(ObservedRun& run) {
    std::vector<int> ranks;
    for (const auto& each : run.publications) {
      if (each.pid != 0) ranks.push_back(each.pid);
    }
    for (const auto& each : run.progress) ranks.push_back(each.pid);
    if (!ranks.empty()) run.pids = std::move(ranks);
    std::ranges::sort(run.pids);
    run.pids.erase(std::unique(run.pids.begin(), run.pids.end()), run.pids.end());
  }

  // With a number from the second group of this name on.
  std::string name_of_group(const std::string& name, int pid) {
    auto& same = names_[{runs_.set_of(pid), name}];
    const auto number = same.emplace(groups_.set_of({name, pid}).second, same.size() + 1).first->second;
    return number == 1 ? name : fmt::format("{} ({})", name, number);
  }

  std::map<File, Mappings> mappings_;
  Mappings progress_;
  Sets<int> runs_;
  Sets<std::pair<std::string, int>> groups_;
  std::map<std::pair<int, std::string>, std::map<int, std::size_t>> names_;  // of each run
};

std::string describe(const std::vector<ObservedRun>& runs) {
  std::string text;
  for (const auto& run : runs) {
    text += fmt::format("\n  {}: {} of pids {}", run.id.empty() ? std::to_string(run.pids.front()) : run.id,
                        run.pids.size() == 1 ? "the process" : "ranks", fmt::join(run.pids, ", "));
  }
  return text;
}

}  // namespace

std::vector<ObservedRun> find_runs(const std::vector<Process>& processes) { return Runs(processes).take(); }

ObservedRun joined(std::vector<ObservedRun> runs) {
  ObservedRun all;
  for (auto& run : runs) {
    if (!run.problem.empty()) {
      all.problem = std::move(run.problem);
      continue;
    }
    all.id = std::move(run.id);
    all.restarts = std::max(all.restarts, run.restarts);
    std::ranges::move(run.pids, std::back_inserter(all.pids));
    std::ranges::move(run.publications, std::back_inserter(all.publications));
    std::ranges::move(run.progress, std::back_inserter(all.progress));
  }
  return all;
}

ObservedRun find_run(const std::string& name) {
  const auto processes = own_processes();
  auto runs = find_runs(processes);
  const auto pid = parse_number<int>(name);
  std::vector<ObservedRun> fitting;
  for (auto& run : runs) {
    const bool fits = name.empty() || (!run.id.empty() && run.id == name) ||
                      (pid && std::ranges::any_of(
                                  run.pids, [&](int rank) { return descends_from(processes, rank, *pid); }));
    if (fits) fitting.push_back(run);
  }
  if (fitting.size() == 1 && !fitting.front().problem.empty()) throw Error(fitting.front().problem);
  if (fitting.size() == 1) return fitting.front();
  if (fitting.size() > 1) {
    throw_error<ArgumentError>("{} runs of this user are on this host; name one by the pid of a rank:{}",
                               fitting.size(), describe(fitting));
  }
  const auto known = runs.empty() ? "" : "; the runs here are:" + describe(runs);
  if (pid) {
    const auto reason = reason_not_to_look(*pid);
    throw_error<ArgumentError>(
        "{}{}", reason.empty() ? fmt::format("process {} is neither a rank nor above one", *pid) : reason,
        known);
  }
  throw_error<ArgumentError>("{} on this host{}",
                             name.empty() ? "there is no run of this user"
                                          : fmt::format("there is no run \"{}\" of this user", name),
                             known);
}

}  // namespace lockstep::observe
