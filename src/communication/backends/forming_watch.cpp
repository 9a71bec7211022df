// SPDX-License-Identifier: BSD-3-Clause
#include "backends/forming_watch.h"

#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/host.h"

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLostKey = "lost";
constexpr int kProcessesOfAPoll = 8;  // each costs about 20 us
constexpr std::chrono::milliseconds kWaitForReports = 200ms;

}  // namespace

FormingWatch::FormingWatch(std::vector<ProcessIdentity> members, c10::intrusive_ptr<c10d::Store> store,
                           std::shared_ptr<node::ThreadExchange> threads)
    : members_(std::move(members)), store_(std::move(store)), threads_(std::move(threads)) {}

std::string FormingWatch::find_lost() {
  const MutexLock lock(mutex_);
  return lost_.empty() && check_.is_due() ? poll(kProcessesOfAPoll) : lost_;
}

std::string FormingWatch::find_cause() noexcept {
  try {
    const MutexLock lock(mutex_);
    const Deadline deadline(kWaitForReports);
    while (poll(static_cast<int>(members_.size())).empty() && !deadline.expired())
      std::this_thread::sleep_for(1ms);
    return lost_;
  } catch (const std::exception&) {
    return {};  // the store is gone
  }
}

void FormingWatch::report(const std::string& text) noexcept {
  try {
    (void)store_->compareSet(kLostKey, "", text);
  } catch (const std::exception&) {
    // The store is gone, and with it the members that would read this.
  }
}

// The first report counts on all members.
std::string FormingWatch::poll(int most) {
  if (!lost_.empty()) return lost_;
  // Not get(), which waits: the key may be deleted meanwhile.
  if (store_->check({kLostKey}) && !(lost_ = store_->compareSet(kLostKey, "", "")).empty()) return lost_;
  if (threads_ && threads_->given_up()) return lost_ = "the thread of another rank has failed";
  const auto dead = find_dead(most);
  return lost_ = dead.empty() ? dead : store_->compareSet(kLostKey, "", dead);
}

std::string FormingWatch::find_dead(int most) {
  for (int i = 0; i < most; ++i) {
    const auto rank = next_member_++ % members_.size();
    const auto& member = members_[rank];
    if (has_ended(member))
      return fmt::format("rank {} (pid {} on {}) is dead", rank, member.pid, host_name());
  }
  return {};
}

}  // namespace lockstep::backends
