// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/mutex.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "rendezvous/tcp.h"

namespace lockstep::launch {
struct StoreReply;
struct StoreRequest;
}  // namespace lockstep::launch

namespace lockstep::rendezvous {

// The store of a run on several hosts whose ranks are replaced: note [Store of a run on several hosts] in
// launch/run_store_server.h. A lost connection is an Error in every later call, because the launcher that serves the store
// has ended, or its host cannot be reached.
class RemoteStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  // Connects. `token`: of the run. Throws RendezvousError naming the server at the deadline, and Error if it knows
  // another token.
  RemoteStore(Endpoint server, std::string token, const Deadline& deadline);

  c10::intrusive_ptr<Store> clone() override;

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  // Throws DistStoreError at the timeout, as c10d's stores.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  launch::StoreReply ask(const launch::StoreRequest& request);
  std::string exchange(const std::string& line) LOCKSTEP_REQUIRES(mutex_);
  std::string receive_line() LOCKSTEP_REQUIRES(mutex_);
  [[noreturn]] void throw_lost(const std::string& reason) const;

  const Endpoint server_;
  const std::string token_;
  Mutex mutex_;
  UniqueFd socket_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string received_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rendezvous
