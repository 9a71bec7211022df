// SPDX-License-Identifier: BSD-3-Clause
#include "backends/member_store.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/deadline.h"
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

using std::chrono::microseconds;

constexpr microseconds kFirstPause{50};
constexpr microseconds kLongestPause{10'000};

}  // namespace

void MemberStore::watch(std::function<std::string()> find_lost) {
  const MutexLock lock(mutex_);
  find_lost_ = std::move(find_lost);
}

void MemberStore::remember(const std::string& key) {
  const MutexLock lock(mutex_);
  own_keys_.insert(key);
}

void MemberStore::delete_own_keys() noexcept {
  try {
    const MutexLock lock(mutex_);
    for (const auto& key : std::exchange(own_keys_, {})) (void)deleteKey(key);
  } catch (const std::exception&) {
    // The store is gone, or cannot delete keys.
  }
}

void MemberStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  remember(key);
  PrefixStore::set(key, value);
}

std::vector<std::uint8_t> MemberStore::compareSet(const std::string& key,
                                                  const std::vector<std::uint8_t>& expected,
                                                  const std::vector<std::uint8_t>& desired) {
  auto value = PrefixStore::compareSet(key, expected, desired);
  if (value == desired) remember(key);
  return value;
}

std::int64_t MemberStore::add(const std::string& key, std::int64_t value) {
  remember(key);
  return PrefixStore::add(key, value);
}

void MemberStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  remember(key);
  PrefixStore::append(key, value);
}

void MemberStore::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<std::uint8_t>>& values) {
  std::ranges::for_each(keys, [&](const auto& key) { remember(key); });
  PrefixStore::multiSet(keys, values);
}

std::vector<std::uint8_t> MemberStore::get(const std::string& key) {
  if (!check({key})) wait({key}, getTimeout());
  return PrefixStore::get(key);
}

void MemberStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void MemberStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const Deadline deadline(timeout);
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto find_lost = [&] {
      const MutexLock lock(mutex_);
      return find_lost_;
    }();
    if (!find_lost) return PrefixStore::wait(keys, timeout);
    if (check(keys)) return;
    check_wait();
    if (const auto lost = find_lost(); !lost.empty()) throw RendezvousError(lost);
    if (timeout != kNoTimeout && deadline.expired()) {
      throw_error<RendezvousError>("no rank set {} in the ranks' store within {} ms", fmt::join(keys, ", "),
                                   timeout.count());
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace lockstep::backends
