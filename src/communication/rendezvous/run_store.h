// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/mutex.h>

#include "base/run_memory.h"

namespace lockstep::rendezvous {

// Note [The store of a run whose ranks are replaced]
//
// No process serves this store, so the end of none ends it: c10d's stores live in rank 0, or in files whose
// records a SIGKILL can tear. Records are appended to memory of the launcher (note [Memory of a run]):
//
//     bytes of key | bytes of value, or kDeleted | key | value
//
// RunState::store_bytes says where the last complete record ends. A writer holds RunState::store_mutex, writes
// its record behind that and then publishes the new end, so a record of a writer that dies is overwritten. The
// mutex is robust: the kernel gives it to the next writer. Readers take no lock of other processes. Each process
// keeps a map of the records that it has read. Records are never removed: forming the
// group of 4 ranks takes 2.3 KB of the 64 MiB.
class RunStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  explicit RunStore(std::shared_ptr<const RunMemory> memory) : memory_(std::move(memory)) {}

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<RunStore>(memory_); }

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  // Throws DistStoreError at the timeout, as c10d's stores.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  class Writing;

  void catch_up() LOCKSTEP_REQUIRES(mutex_);
  void append_record(const std::string& key, const Bytes* value) LOCKSTEP_REQUIRES(mutex_);
  bool has_all(const std::vector<std::string>& keys);

  std::shared_ptr<const RunMemory> memory_;
  Mutex mutex_;
  std::unordered_map<std::string, Bytes> values_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t read_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // bytes of the store's memory
};

}  // namespace lockstep::rendezvous
