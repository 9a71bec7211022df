// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/thread_meeting.h"

namespace lockstep::rendezvous {

// The store of ranks that are threads of one process. Waiting in it ends when one of them has failed.
class ThreadStore : public c10d::HashStore {
 public:
  explicit ThreadStore(std::shared_ptr<comm::ThreadMeeting> threads);

  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::shared_ptr<comm::ThreadMeeting> threads_;
};

}  // namespace lockstep::rendezvous
