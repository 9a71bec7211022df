// SPDX-License-Identifier: BSD-3-Clause
#include "observe/read_run.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/host.h"
#include "base/liveness.h"
#include "observe/call_names.h"

namespace lockstep::observe {
namespace {

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
  member.bytes = status.bytes.load(std::memory_order_acquire);
  member.backend = text_in(status.backend);
  member.calls = calls_of(status);
  return member;
}

Life life_of(int pid, int thread, const std::atomic<bool>& has_finished) {
  if (pid == 0 || is_exiting(pid)) {
    return has_finished.load(std::memory_order_acquire) ? Life::finished : Life::dead;
  }
  const char letter = state_letter(thread);
  if (letter == 'Z' || letter == 'X') return Life::dead;
  return letter == 'T' || letter == 't' ? Life::stopped : Life::alive;
}

// The steps that the rank does not overwrite meanwhile.
std::vector<Step> steps_of(const RankProgress& progress) {
  std::vector<Step> steps;
  for (const auto& entry : progress.last_steps) {
    const auto number = entry.number.load(std::memory_order_acquire);
    const Step step{
        .number = number, .ended_at = entry.ended_at, .spent = entry.spent, .samples = entry.samples};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (number != 0 && entry.number.load(std::memory_order_relaxed) == number) steps.push_back(step);
  }
  std::ranges::sort(steps, {}, &Step::number);
  return steps;
}

std::vector<MemorySample> memory_of(const RankProgress& progress) {
  std::vector<MemorySample> samples;
  for (const auto& entry : progress.memory) {
    const auto at = entry.at.load(std::memory_order_acquire);
    const MemorySample sample{.at = at, .resident = entry.resident, .shared = entry.shared};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (at != 0 && entry.at.load(std::memory_order_relaxed) == at) samples.push_back(sample);
  }
  std::ranges::sort(samples, {}, &MemorySample::at);
  return samples;
}

// Reads until the writer does not change anything meanwhile, a limited number of times: it may be stopped.
template <class Read>
bool read_stable(const std::atomic<std::uint64_t>& changes, const Read& read) {
  for (int i = 0; i < 1000; ++i) {
    const auto before = changes.load(std::memory_order_acquire);
    if (before % 2 == 1) continue;
    read();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (changes.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

void read_phase(const RankProgress& memory, Progress& progress) {
  const auto read = [&] {
    progress.phase = memory.phase.load(std::memory_order_relaxed);
    progress.phase_since = memory.phase_since.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < kPhases; ++i)
      progress.spent[i] = memory.spent[i].load(std::memory_order_relaxed);
  };
  if (!read_stable(memory.changes, read))
    read();  // the rank was stopped while it wrote: one phase is not counted
}

// The file that is being read for the longest.
void read_reading(const RankProgress& memory, Progress& progress) {
  for (const auto& entry : memory.reading) {
    std::string path;
    std::int64_t since = 0;
    const bool is_stable = read_stable(entry.changes, [&] {
      since = entry.since;
      path = since == 0 ? "" : text_in(entry.path);
    });
    if (!is_stable || since == 0 || (!progress.reading.empty() && progress.reading_since <= since)) continue;
    progress.reading = path;
    progress.reading_since = since;
  }
}

Progress progress_of(const RankProgress& memory) {
  constexpr auto kAcquire = std::memory_order_acquire;
  Progress progress{.size = memory.size.load(kAcquire),
                    .has_left = memory.has_left.load(kAcquire),
                    .began_at = memory.began_at,
                    .steps = memory.steps.load(kAcquire),
                    .samples = memory.samples.load(kAcquire),
                    .epoch = memory.epoch.load(kAcquire),
                    .gathered = memory.gathered.load(kAcquire),
                    .last = steps_of(memory),
                    .memory = memory_of(memory)};
  read_phase(memory, progress);
  read_reading(memory, progress);
  const auto count = std::min<std::size_t>(memory.number_count.load(kAcquire), memory.numbers.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& number = memory.numbers[i];
    progress.numbers.emplace_back(text_in(number.name), number.value.load(std::memory_order_relaxed));
  }
  return progress;
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

// Process and thread as the rank knows them.
using RankKey = std::pair<std::int64_t, std::int64_t>;

class RunReader {
 public:
  explicit RunReader(bool with_activity) : with_activity_(with_activity) {}

  Run read(const ObservedRun& observed) {
    for (const auto& publication : observed.publications) add(publication);
    for (const auto& published : observed.progress) add(published);
    // The number in the job: as a part of the job says it, else that in the largest group.
    for (auto& rank : ranks_) {
      std::ranges::stable_sort(rank.groups, std::greater(), &Membership::size);
      const auto given = job_ranks_.find({rank.pid, rank.thread});
      rank.rank = given != job_ranks_.end() ? given->second : rank.groups.front().rank;
      rank.restarts = observed.restarts;
    }
    std::ranges::sort(ranks_, {}, &Rank::rank);
    Run run{.id = observed.id, .host = host_name()};
    run.taken_at = steady_now();
    run.ranks = std::move(ranks_);
    return run;
  }

 private:
  Rank& rank_of(RankKey key, int pid, int thread, const std::atomic<bool>& has_finished) {
    const auto known = std::ranges::find_if(ranks_, [&](const Rank& each) {
      return RankKey{each.pid, each.thread} == key;
    });
    if (known != ranks_.end()) return *known;
    const auto life = life_of(pid, thread, has_finished);
    const bool gone = life == Life::dead || life == Life::finished;
    ranks_.push_back({.pid = key.first,
                      .thread = key.second,
                      .life = life,
                      .activity = gone || !with_activity_ ? "" : describe_thread(thread)});
    return ranks_.back();
  }

  void add(const Publication& publication) {
    const auto& status = *publication.status;
    const RankKey key{status.pid, status.thread};
    add_membership(rank_of(key, publication.pid, publication.thread, status.has_finished),
                   membership_of(publication));
    if (status.job_rank >= 0) job_ranks_[key] = status.job_rank;
  }

  void add(const PublishedProgress& published) {
    const auto& memory = *published.memory;
    const RankKey key{memory.pid, memory.thread};
    static const std::atomic<bool> kNotFinished{false};
    rank_of(key, published.pid, published.thread, kNotFinished).progress = progress_of(memory);
    job_ranks_[key] = memory.rank.load(std::memory_order_acquire);
  }

  bool with_activity_;
  std::vector<Rank> ranks_;
  std::map<RankKey, int> job_ranks_;
};

}  // namespace

Run ObservedRun::read(bool with_activity) const { return RunReader(with_activity).read(*this); }

}  // namespace lockstep::observe
