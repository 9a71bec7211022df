// SPDX-License-Identifier: BSD-3-Clause
#include "observe/find_runs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <map>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/version.h>

#include "base/host.h"
#include "base/liveness.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "observe/call_names.h"

namespace lockstep::observe {
namespace {

using File = decltype(MappedMemory::file);

// Read-only. nullptr if the file is none of ours: memory that can shrink would be a SIGBUS.
std::shared_ptr<const Segment> map_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  const int seals = fd ? ::fcntl(fd.get(), F_GET_SEALS) : -1;
  const bool fits = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd.get(), &status) == 0 &&
                    static_cast<std::size_t>(status.st_size) >= sizeof(Segment);
  if (!fits) return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(Segment), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<const Segment*>(memory),
          [](const Segment* mapped) { ::munmap(const_cast<Segment*>(mapped), sizeof(Segment)); }};
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
    if (auto segment = path ? map_file(*path) : nullptr) return segment;
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

std::string other_format(std::uint64_t number, int pid) {
  return fmt::format(
      "process {} publishes its calls in {} format {}, and this version of Lockstep, {}, reads {}: use the `lockstep` of "
      "the version with which the program was built",
      pid, formats::kFlightRecorder.name, number, version(), formats::kFlightRecorder.number);
}

Publication publication_of(const Mappings& mappings, std::shared_ptr<const RankStatus> status) {
  Publication publication{.group = mappings.front().second->group, .status = std::move(status)};
  for (const auto& [process, memory] : mappings) {
    const auto& own = *publication.status;
    if (process->inner_pid != own.pid) continue;
    publication.pid = process->pid;
    // In another pid namespace the numbers of threads are others, too; the main thread's is the process's.
    const bool is_main = own.thread == own.pid || process->pid != own.pid;
    publication.thread = is_main ? process->pid : static_cast<int>(own.thread);
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
        groups_.join({memory.group, process.pid}, {memory.group, first});
      }
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
        run.problem = other_format(format, pid);
        continue;
      }
      run.publications.push_back(publication_of(mappings, {segment, &segment->status}));
      run.publications.back().group = name_of_group(mappings.front().second->group, pid);
    }
    std::vector<ObservedRun> found;
    for (auto& [root, run] : runs) {
      std::ranges::sort(run.pids);
      run.pids.erase(std::unique(run.pids.begin(), run.pids.end()), run.pids.end());
      run.id = variable_of(run.pids.front(), "TORCHELASTIC_RUN_ID");
      if (run.id == "none") run.id.clear();
      found.push_back(std::move(run));
    }
    return found;
  }

 private:
  // With a number from the second group of this name on.
  std::string name_of_group(const std::string& name, int pid) {
    auto& same = names_[name];
    const auto number = same.emplace(groups_.set_of({name, pid}).second, same.size() + 1).first->second;
    return number == 1 ? name : fmt::format("{} ({})", name, number);
  }

  std::map<File, Mappings> mappings_;
  Sets<int> runs_;
  Sets<std::pair<std::string, int>> groups_;
  std::map<std::string, std::map<int, std::size_t>> names_;
};

std::string describe(const std::vector<ObservedRun>& runs) {
  std::string text;
  for (const auto& run : runs) {
    text += fmt::format("\n  {}: {} of pids {}", run.id.empty() ? std::to_string(run.pids.front()) : run.id,
                        run.pids.size() == 1 ? "the process" : "ranks", fmt::join(run.pids, ", "));
  }
  return text;
}

// Without a character of UTF-8 that the end has cut.
std::string text_in(const auto& chars) {
  std::string text(chars.data(), ::strnlen(chars.data(), chars.size()));
  if (text.size() + 1 < chars.size()) return text;
  const auto is_continuation = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; };
  while (!text.empty() && is_continuation(text.back())) text.pop_back();
  if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80U) != 0) text.pop_back();
  return text;
}

Call call_of(const StatusEntry& entry, std::uint64_t number) {
  const auto shown = std::min<std::size_t>(entry.dims, StatusEntry::kDims);
  const auto contents = text_in(entry.contents);
  return {.number = number,
          .sequence = entry.sequence,
          .name = std::string(name_in(kCallNames, entry.kind)),
          .dtype = std::string(name_in(kDtypeNames, entry.dtype)),
          .op = std::string(name_in(kOpNames, entry.op)),
          .shape = {entry.shape.begin(), entry.shape.begin() + static_cast<std::ptrdiff_t>(shown)},
          .dims = entry.dims,
          .peer = entry.peer,
          .file = text_in(entry.file),
          .line = entry.line,
          .contents = entry.index < 0 ? contents : fmt::format("{} {}", contents, entry.index),
          .issued_at = entry.issued_at};
}

// Without calls that the rank overwrites meanwhile.
std::vector<Call> calls_of(const RankStatus& status) {
  std::vector<Call> calls;
  for (const auto& entry : status.notes) {
    const auto number = entry.number.load(std::memory_order_acquire);
    if (number == 0) continue;
    auto call = call_of(entry, number);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry.number.load(std::memory_order_relaxed) == number) calls.push_back(std::move(call));
  }
  std::ranges::sort(calls, {}, &Call::number);
  return calls;
}

Membership membership_of(const Publication& publication) {
  const auto& status = *publication.status;
  Membership member{.group = publication.group, .rank = status.rank, .size = status.size};
  member.completed = status.completed.load(std::memory_order_acquire);
  member.awaited = status.awaited.load(std::memory_order_acquire);
  member.failed = status.failed.load(std::memory_order_acquire);
  member.issued = status.issued.load(std::memory_order_acquire);
  member.calls = calls_of(status);
  return member;
}

Life life_of(const Publication& publication) {
  if (publication.pid == 0 || is_exiting(publication.pid)) {
    return publication.status->has_finished.load(std::memory_order_acquire) ? Life::finished : Life::dead;
  }
  const char letter = state_letter(publication.thread);
  if (letter == 'Z' || letter == 'X') return Life::dead;
  return letter == 'T' || letter == 't' ? Life::stopped : Life::alive;
}

std::int64_t last_issue(const Membership& member) {
  return member.calls.empty() ? 0 : member.calls.back().issued_at;
}

// A group that was formed again leaves memory of the same name behind: the one in use is later.
void add_membership(Rank& rank, Membership member) {
  const auto same = std::ranges::find(rank.groups, member.group, &Membership::group);
  if (same == rank.groups.end()) {
    rank.groups.push_back(std::move(member));
  } else if (last_issue(member) > last_issue(*same)) {
    *same = std::move(member);
  }
}

// The number in the job: as a part of the job says it, else that in the largest group.
void number_ranks(std::vector<Rank>& ranks,
                  const std::map<std::pair<std::int64_t, std::int64_t>, int>& job_ranks) {
  for (auto& rank : ranks) {
    std::ranges::stable_sort(rank.groups, std::greater(), &Membership::size);
    const auto given = job_ranks.find({rank.pid, rank.thread});
    rank.rank = given != job_ranks.end() ? given->second : rank.groups.front().rank;
  }
  std::ranges::sort(ranks, {}, &Rank::rank);
}

}  // namespace

Run ObservedRun::read() const {
  Run run{.id = id, .host = host_name()};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  run.taken_at = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  std::map<std::pair<std::int64_t, std::int64_t>, int> job_ranks;
  for (const auto& publication : publications) {
    const auto& status = *publication.status;
    const std::pair key{status.pid, status.thread};
    auto rank = std::ranges::find_if(run.ranks, [&](const Rank& each) {
      return std::pair{each.pid, each.thread} == key;
    });
    if (rank == run.ranks.end()) {
      const auto life = life_of(publication);
      const bool gone = life == Life::dead || life == Life::finished;
      run.ranks.push_back({.pid = status.pid,
                           .thread = status.thread,
                           .life = life,
                           .activity = gone ? "" : describe_thread(publication.thread)});
      rank = run.ranks.end() - 1;
    }
    if (status.job_rank >= 0) job_ranks[key] = status.job_rank;
    add_membership(*rank, membership_of(publication));
  }
  number_ranks(run.ranks, job_ranks);
  return run;
}

std::vector<ObservedRun> find_runs(const std::vector<Process>& processes) { return Runs(processes).take(); }

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
    throw_error<ArgumentError>("{}{}",
                               reason.empty()
                                   ? fmt::format("process {} is neither a rank that shares memory with "
                                                 "other ranks of this host nor above one",
                                                 *pid)
                                   : reason,
                               known);
  }
  throw_error<ArgumentError>("{} on this host{}",
                             name.empty() ? "there is no run of this user whose ranks share memory"
                                          : fmt::format("there is no run {} of this user", name),
                             known);
}

}  // namespace lockstep::observe
