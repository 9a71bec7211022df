// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/mutex.h>

namespace lockstep::backends {

// The store of a group as one member uses it. It knows the keys that this member has set, and a wait in it
// can end early. Safe from any thread.
class MemberStore final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;

  // From now on waits call `find_lost`, unless it is empty, and throw RendezvousError with its text, unless
  // that is empty.
  void watch(std::function<std::string()> find_lost);
  // Deletes the keys that this member has set, for when it has left the group. A failure is ignored.
  void delete_own_keys() noexcept;

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  void remember(const std::string& key);

  Mutex mutex_;
  std::set<std::string> own_keys_ LOCKSTEP_GUARDED_BY(mutex_);
  std::function<std::string()> find_lost_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
