// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/run_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::uint32_t kDeleted = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kChunk = std::size_t{256} << 10U;  // of memory that is allocated at once
constexpr std::chrono::milliseconds kLongestSleep{100};

struct RecordHeader {
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;  // or kDeleted
};

std::string text_of(const RunStore::Bytes& value) { return {value.begin(), value.end()}; }

RunStore::Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

void lock(pthread_mutex_t& mutex) {
  const int error = ::pthread_mutex_lock(&mutex);
  if (error == 0) return;
  // Its owner has died. What that left behind is no complete record yet.
  if (error == EOWNERDEAD && ::pthread_mutex_consistent(&mutex) == 0) return;
  throw_error<Error>("the store of the run cannot be locked: {}", errno_text(error));
}

}  // namespace

// While it lives, no other process writes, and this one has read everything.
class RunStore::Writing {
 public:
  explicit Writing(RunStore& store) LOCKSTEP_REQUIRES(store.mutex_) : state_(store.memory_->state()) {
    lock(state_.store_mutex);
    store.catch_up();
  }
  ~Writing() { ::pthread_mutex_unlock(&state_.store_mutex); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  RunState& state_;
};

void RunStore::catch_up() {
  const auto end = memory_->state().store_bytes.load(std::memory_order_acquire);
  const auto* const data = reinterpret_cast<const char*>(memory_->store().data());
  while (read_ < end) {
    RecordHeader header;
    std::memcpy(&header, data + read_, sizeof(header));
    const auto* const key = data + read_ + sizeof(header);
    const auto* const value = key + header.key_bytes;
    const std::string name(key, header.key_bytes);
    read_ += sizeof(header) + header.key_bytes;
    if (header.value_bytes == kDeleted) {
      values_.erase(name);
      continue;
    }
    values_[name].assign(value, value + header.value_bytes);
    read_ += header.value_bytes;
  }
}

void RunStore::append_record(const std::string& key, const Bytes* value) {
  auto& state = memory_->state();
  const auto memory = memory_->store();
  const RecordHeader header{.key_bytes = static_cast<std::uint32_t>(key.size()),
                            .value_bytes = value ? static_cast<std::uint32_t>(value->size()) : kDeleted};
  const auto end = read_ + sizeof(header) + key.size() + (value ? value->size() : 0);
  if (end > memory.size()) {
    throw_error<Error>("the store of the run is full: its records take {}; start the run again",
                       bytes_text(memory.size()));
  }
  if (end > state.committed_bytes) {
    const auto whole = std::min((end + kChunk - 1) / kChunk * kChunk, memory.size());
    memory_->commit_store(whole);
    state.committed_bytes = whole;
  }
  auto* const target = reinterpret_cast<char*>(memory.data()) + read_;
  std::memcpy(target, &header, sizeof(header));
  std::memcpy(target + sizeof(header), key.data(), key.size());
  if (value && !value->empty())
    std::memcpy(target + sizeof(header) + key.size(), value->data(), value->size());
  state.store_bytes.store(end, std::memory_order_release);
  catch_up();
  state.note_change();
}

void RunStore::set(const std::string& key, const Bytes& value) {
  const MutexLock own(mutex_);
  const Writing writing(*this);
  append_record(key, &value);
}

// As c10d's: an absent key equals an empty `expected`.
RunStore::Bytes RunStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  const MutexLock own(mutex_);
  const Writing writing(*this);
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return expected;
  if (found != values_.end() && found->second != expected) return found->second;
  append_record(key, &desired);
  return desired;
}

RunStore::Bytes RunStore::get(const std::string& key) {
  while (true) {
    wait({key}, getTimeout());
    const MutexLock own(mutex_);
    // Another thread may have read meanwhile that the key was deleted.
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
  }
}

std::int64_t RunStore::add(const std::string& key, std::int64_t value) {
  const MutexLock own(mutex_);
  const Writing writing(*this);
  const auto found = values_.find(key);
  if (found != values_.end()) {
    const auto before = parse_number<std::int64_t>(text_of(found->second));
    if (!before) throw_error<Error>("the store of the run: \"{}\" is no number that add() could change", key);
    value += *before;
  }
  const auto sum = bytes_of(fmt::format("{}", value));
  append_record(key, &sum);
  return value;
}

bool RunStore::deleteKey(const std::string& key) {
  const MutexLock own(mutex_);
  const Writing writing(*this);
  if (!values_.contains(key)) return false;
  append_record(key, nullptr);
  return true;
}

bool RunStore::has_all(const std::vector<std::string>& keys) {
  const MutexLock own(mutex_);
  catch_up();
  return std::ranges::all_of(
      keys, [this](const auto& key) LOCKSTEP_REQUIRES(mutex_) { return values_.contains(key); });
}

bool RunStore::check(const std::vector<std::string>& keys) { return has_all(keys); }

std::int64_t RunStore::getNumKeys() {
  const MutexLock own(mutex_);
  catch_up();
  return static_cast<std::int64_t>(values_.size());
}

void RunStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const Deadline deadline(timeout);
  const auto& changes = memory_->state().changes;
  while (true) {
    const auto seen = changes.load(std::memory_order_acquire);
    if (has_all(keys)) return;
    if (timeout != kNoTimeout && deadline.expired()) {
      C10_THROW_ERROR(DistStoreError, fmt::format("wait timeout after {} ms, keys: {}", timeout.count(),
                                                  fmt::join(keys, ", ")));
    }
    const auto left = timeout == kNoTimeout ? kLongestSleep : std::min(deadline.remaining(), kLongestSleep);
    futex_wait(changes, seen, left);
  }
}

}  // namespace lockstep::rendezvous
