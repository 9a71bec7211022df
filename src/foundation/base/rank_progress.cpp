// SPDX-License-Identifier: BSD-3-Clause
#include "base/rank_progress.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>

#include "base/host.h"
#include "base/process_state.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace lockstep {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kMemoryPeriod = 1'000'000'000;  // nanoseconds
// Larger than today's layout: other versions map it whole and find the number of the format.
constexpr std::size_t kSpace = std::size_t{64} << 10;
static_assert(sizeof(RankProgress) <= kSpace);

template <std::size_t kSize>
void copy_name(std::array<char, kSize>& target, std::string_view text) {
  const auto length = std::min(text.size(), kSize - 1);
  std::memcpy(target.data(), text.data(), length);
  target.at(length) = '\0';
}

// Unlike a pointer to the thread's state, it is no other thread's as long as this one runs.
std::uintptr_t own_mark() {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

std::shared_ptr<RankProgress> make_progress(int rank, int size) {
  auto memory = std::make_shared<SharedMemory>(SharedMemory::create(kProgressName, kSpace));
  memory->commit(0, sizeof(RankProgress), "the progress of this rank");
  auto* const progress = new (memory->data()) RankProgress;
  progress->pid = ::getpid();
  progress->thread = ::gettid();
  progress->rank = rank;
  progress->size = size;
  progress->began_at = steady_now();
  progress->phase_since = progress->began_at;
  copy_name(progress->host, host_name());
  progress->mark.store(RankProgress::kMark, std::memory_order_release);
  return {std::move(memory), progress};
}

// The one of the process. It is kept until the end, since threads of the process that are no ranks use it.
struct ProcessProgress {
  ForkMark mark;
  std::shared_ptr<RankProgress> progress;
};

std::atomic<const ProcessProgress*>& process_progress() {
  static std::atomic<const ProcessProgress*> published{nullptr};
  return published;
}

std::shared_ptr<RankProgress>& thread_progress() {
  thread_local std::shared_ptr<RankProgress> own;
  return own;
}

const ProcessProgress* own_process_progress() noexcept {
  const auto* const own = process_progress().load(std::memory_order_acquire);
  return own == nullptr || own->mark.is_in_child() ? nullptr : own;
}

struct MemoryUse {
  std::int64_t resident = 0;  // bytes
  std::int64_t shared = 0;
};

// That of this process; zeros if it is not known.
MemoryUse memory_use() noexcept {
  const UniqueFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return {};
  const auto page = ::sysconf(_SC_PAGESIZE);
  char* rest = nullptr;
  std::strtoll(text.data(), &rest, 10);  // address space
  const auto resident = std::strtoll(rest, &rest, 10) * page;
  return {.resident = resident, .shared = std::strtoll(rest, nullptr, 10) * page};
}

void sample_memory(RankProgress& progress, std::int64_t now) noexcept {
  const auto count = progress.memory_samples.load(kRelaxed);
  const auto size = progress.memory.size();
  if (count > 0 && now - progress.memory[(count - 1) % size].at.load(kRelaxed) < kMemoryPeriod) return;
  auto& entry = progress.memory[count % size];
  entry.at.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto use = memory_use();
  entry.resident = use.resident;
  entry.shared = use.shared;
  entry.at.store(now, std::memory_order_release);
  progress.memory_samples.store(count + 1, std::memory_order_release);
}

}  // namespace

std::int64_t steady_now() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void publish_progress(int rank, int size, bool is_thread) {
  if (const auto& own = current_progress(); own && (is_thread == (own == thread_progress()))) {
    own->rank = rank;
    own->size = size;
    own->has_left = false;
    return;
  }
  try {
    auto progress = make_progress(rank, size);
    claim_phases(*progress);
    if (is_thread) {
      thread_progress() = std::move(progress);
    } else {
      process_progress().store(new ProcessProgress{{}, std::move(progress)}, std::memory_order_release);
    }
  } catch (const std::exception& error) {
    log(LogLevel::debug, fmt::format("`lockstep top` cannot see this rank: {}", error.what()));
  }
}

void end_progress(bool is_thread) noexcept {
  const auto* const process = own_process_progress();
  const auto own = is_thread ? std::exchange(thread_progress(), nullptr)
                             : (process == nullptr ? nullptr : process->progress);
  if (own) own->has_left = true;
}

const std::shared_ptr<RankProgress>& current_progress() noexcept {
  static const std::shared_ptr<RankProgress> kNone;
  if (const auto& own = thread_progress()) return own;
  const auto* const process = own_process_progress();
  return process == nullptr ? kNone : process->progress;
}

RankProgress* progress_of_trainer() noexcept {
  auto* const progress = current_progress().get();
  const bool is_trainer = progress != nullptr && progress->trainer.load(kRelaxed) == own_mark();
  return is_trainer ? progress : nullptr;
}

void claim_phases(RankProgress& progress) noexcept { progress.trainer.store(own_mark(), kRelaxed); }

Phase enter_phase(RankProgress& progress, Phase phase) noexcept {
  const auto now = steady_now();
  const auto before = progress.phase.load(kRelaxed);
  const auto odd = progress.changes.load(kRelaxed) | 1U;  // also if two threads have disturbed each other
  progress.changes.store(odd, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  auto& spent = progress.spent[static_cast<std::size_t>(before)];
  spent.store(spent.load(kRelaxed) + now - progress.phase_since.load(kRelaxed), kRelaxed);
  progress.phase_since.store(now, kRelaxed);
  progress.phase.store(phase, kRelaxed);
  progress.changes.store(odd + 1, std::memory_order_release);
  return before;
}

std::uint64_t counted_steps() noexcept {
  const auto& progress = current_progress();
  return progress ? progress->steps.load(kRelaxed) : 0;
}

void count_step(RankProgress& progress, std::uint64_t steps) noexcept {
  if (steps <= progress.steps.load(kRelaxed)) return;
  const auto now = steady_now();
  auto& entry = progress.last_steps[steps % progress.last_steps.size()];
  entry.number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.ended_at = now;
  for (std::size_t i = 0; i < kPhases; ++i) entry.spent[i] = progress.spent[i].load(kRelaxed);
  entry.spent[static_cast<std::size_t>(progress.phase.load(kRelaxed))] +=
      now - progress.phase_since.load(kRelaxed);
  entry.samples = progress.samples.load(kRelaxed);
  entry.number.store(steps, std::memory_order_release);
  progress.steps.store(steps, std::memory_order_release);
  sample_memory(progress, now);
}

PhaseScope::PhaseScope(Phase phase) noexcept : progress_(progress_of_trainer()) {
  if (progress_ != nullptr) next_ = enter_phase(*progress_, phase);
}

PhaseScope::~PhaseScope() {
  if (progress_ != nullptr) enter_phase(*progress_, next_);
}

void GatheredBytes::set(std::int64_t bytes) noexcept {
  if (bytes == bytes_) return;
  if (!progress_) progress_ = current_progress();
  if (!progress_) return;
  progress_->gathered.fetch_add(bytes - bytes_, kRelaxed);
  bytes_ = bytes;
}

ReadingScope::ReadingScope(std::string_view path) noexcept : progress_(current_progress()) {
  if (!progress_) return;
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t place = threads++;
  entry_ = &progress_->reading[place % progress_->reading.size()];
  auto changes = entry_->changes.load(kRelaxed);
  // Another thread with this place may be writing.
  if (changes % 2 == 1 || !entry_->changes.compare_exchange_strong(changes, changes + 1)) {
    entry_ = nullptr;
    return;
  }
  const auto size = entry_->path.size() - 1;
  copy_name(entry_->path, path.size() > size ? path.substr(path.size() - size) : path);
  entry_->since = steady_now();
  entry_->changes.store(changes + 2, std::memory_order_release);
}

ReadingScope::~ReadingScope() {
  if (entry_ == nullptr) return;
  auto changes = entry_->changes.load(kRelaxed);
  if (changes % 2 == 1 || !entry_->changes.compare_exchange_strong(changes, changes + 1)) return;
  entry_->since = 0;
  entry_->changes.store(changes + 2, std::memory_order_release);
}

namespace {

RankProgress::Number* find_number(RankProgress& progress, std::string_view name) noexcept {
  const auto count = progress.number_count.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& known = progress.numbers[i].name;
    // Most names differ in their length.
    if (known[name.size()] == '\0' && std::memcmp(known.data(), name.data(), name.size()) == 0)
      return &progress.numbers[i];
  }
  return nullptr;
}

RankProgress::Number* add_number(RankProgress& progress, std::string_view name) noexcept {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (auto* const known = find_number(progress, name)) return known;
  const auto count = progress.number_count.load(kRelaxed);
  if (count == progress.numbers.size()) return nullptr;
  copy_name(progress.numbers[count].name, name);
  progress.number_count.store(count + 1, std::memory_order_release);
  return &progress.numbers[count];
}

}  // namespace

bool report_number(std::string_view name, double value) noexcept {
  auto* const progress = current_progress().get();
  if (progress == nullptr) return true;
  name = name.substr(0, kNameBytes);
  auto* number = find_number(*progress, name);
  if (number == nullptr) number = add_number(*progress, name);
  if (number != nullptr) number->value.store(value, kRelaxed);
  return number != nullptr;
}

}  // namespace lockstep
