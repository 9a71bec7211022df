// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/thread_store.h"

#include <thread>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

namespace lockstep::rendezvous {

ThreadStore::ThreadStore(std::shared_ptr<comm::ThreadMeeting> threads) : threads_(std::move(threads)) {}

std::vector<std::uint8_t> ThreadStore::get(const std::string& key) {
  wait({key}, getTimeout());
  return HashStore::get(key);
}

void ThreadStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void ThreadStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const Deadline deadline(timeout);
  while (!check(keys)) {
    if (threads_->given_up()) throw RendezvousError("a rank failed before this one could meet it");
    if (deadline.expired()) {
      throw RendezvousError(
          fmt::format("{} was not set in the ranks' store within {} ms", keys.front(), timeout.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace lockstep::rendezvous
