// SPDX-License-Identifier: BSD-3-Clause
#include "comm/group_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "comm/from_c10d.h"
#include "comm/membership.h"
#include "comm/to_c10d.h"

namespace lockstep::comm {
namespace {

constexpr const char* kClosed =
    "the process group has been closed; keep the context that lockstep::init() returned alive for as long as "
    "its groups are used";

constexpr const char* kFormedAgain =
    "the process group has been formed again with other members; use the group that reconfigure() returned";

constexpr auto kEndLimit = std::chrono::milliseconds(500);

// "global rank 3, " of a group that is a part of another one.
std::string global_rank_text(int rank, const std::vector<int>& global_ranks) {
  const auto index = static_cast<std::size_t>(rank);
  return index < global_ranks.size() ? fmt::format("global rank {}, ", global_ranks[index]) : "";
}

bool finished(const std::weak_ptr<Operation>& weak) {
  const auto operation = weak.lock();
  return !operation || operation->is_completed();
}

}  // namespace

GroupState::GroupState(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info)
    : info_(std::move(info)),
      rank_(backend->getRank()),
      size_(backend->getSize()),
      backend_name_(backend->getBackendName()),
      whoami_(fmt::format("{} ({}group {}, {})", numbered_rank(rank_, size_),
                          global_rank_text(rank_, info_.global_ranks), info_.name, backend_name_)),
      rules_(rank_, size_, whoami_, backend_name_, info_.traits, info_.name),
      calls_(calls_of(backend, info_.traits, info_.with_python)),
      log_(info_.node_group ? &info_.node_group->own_status() : nullptr),
      closed_(kClosed),
      backend_(std::move(backend)),
      node_group_(std::exchange(info_.node_group, nullptr)),
      membership_(std::exchange(info_.membership, nullptr)) {
  if (node_group_) node_group_->set_backend(backend_name_);
  if (!info_.global_ranks.empty() && static_cast<int>(info_.global_ranks.size()) != size_) {
    throw_error<ArgumentError>("{}: ProcessGroupInfo::global_ranks has {} entries", whoami(),
                               info_.global_ranks.size());
  }
  if (const auto* streams = dynamic_cast<const StreamBackend*>(backend_.get())) {
    watch_ = std::make_shared<StreamWatch>(*this, *streams, [this] {
      if (const auto open = locked_backend()) abort(*open);
    });
    watched_ = true;
  }
}

GroupState::~GroupState() { close(); }

c10::intrusive_ptr<c10d::Backend> GroupState::backend() const {
  if (auto open = locked_backend()) return open;
  throw_error<Error>(ErrorDetails{.group = info_.name}, "{}: {}", whoami(), closed_.load());
}

c10::intrusive_ptr<c10d::Backend> GroupState::locked_backend() const {
  const MutexLock lock(mutex_);
  return backend_;
}

void GroupState::throw_closed(const CallRecord& call) const {
  throw_error<Error>(ErrorDetails{.group = info_.name, .call = call.describe()}, "{}: {}: {}", whoami(),
                     call.describe(), closed_.load());
}

std::shared_ptr<node::NodeGroup> GroupState::node_group() const {
  const MutexLock lock(mutex_);
  return node_group_;
}

std::shared_ptr<StreamWatch> GroupState::locked_watch() const {
  const MutexLock lock(mutex_);
  return watch_;
}

void GroupState::remember(const OperationPtr& operation) {
  const MutexLock lock(mutex_);
  while (!under_way_.empty() && finished(under_way_.front())) under_way_.pop_front();
  under_way_.emplace_back(operation);
}

bool GroupState::has_calls_under_way() { return !std::ranges::all_of(under_way_, finished); }

// The death of a rank is known before its connections are detected as closed, which ends the calls over them.
bool GroupState::calls_end_soon() {
  const Deadline deadline(kEndLimit);
  while (has_calls_under_way()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// False if calls on a device had to be left unfinished.
bool GroupState::end_watch() {
  const auto watch = this->watch();
  if (!watch) return true;
  // Waits for the calls that still run on the device, because the other ranks need them. The watch ends them
  // when they take longer than the group's timeout.
  const bool drained =
      watch->drain(std::uncaught_exceptions() > 0 ? std::chrono::milliseconds(0) : timeout());
  watch->stop();
  {
    const MutexLock lock(mutex_);
    watch_.reset();
  }
  const auto closed = std::make_exception_ptr(
      Error(fmt::format("{}: GraphedStep: the graph holds calls of this group, which is closed", whoami())));
  if (drained) {
    watch->revoke_graphs(closed);
    if (const auto open = locked_backend()) shut_down(*open);
  } else {
    // Waits until aborting has freed the device.
    revoking_ =
        start_thread<std::jthread>("the end of graphs", [watch, closed] { watch->revoke_graphs(closed); });
  }
  return drained;
}

void GroupState::announce_end() const {
  if (const auto others = node_group()) others->announce_end();
}

void GroupState::close() {
  const bool broken_off = !end_watch();
  {
    const node::FlightRecorder::RecorderLock lock(log_);  // no call starts after it
    calls_.reset();
  }
  const MutexLock lock(mutex_);
  if (!backend_) return;
  if (broken_off || has_calls_under_way()) {
    abort(*backend_);
    if (!calls_end_soon()) (void)backend_.release();
  }
  revoking_ = {};
  backend_.reset();
  under_way_.clear();  // a weak reference keeps what an operation holds
  log_.detach_status();
  node_group_.reset();
  membership_.reset();  // has the memory of tensors
}

void GroupState::break_off() {
  std::shared_ptr<CallBackend> calls;
  {
    const node::FlightRecorder::RecorderLock lock(log_);
    calls = calls_;
  }
  if (calls) calls->break_off();
  calls.reset();
  close();
}

std::shared_ptr<Membership> GroupState::membership() const {
  const MutexLock lock(mutex_);
  return membership_;
}

std::shared_ptr<Membership> GroupState::required_membership() const {
  (void)backend();  // throws if the group is closed
  if (auto membership = this->membership()) return membership;
  throw_error<ArgumentError>(
      "{}: the group cannot be formed again: reconfigure() is for shm, and for hierarchical over "
      "gloo, as the group's only backend",
      whoami());
}

ProcessGroup GroupState::form_again(const ReconfigureOptions& options) {
  const auto own = required_membership();
  const auto old = backend();
  auto* const former = dynamic_cast<FromC10d*>(old.get());  // none in a group that is simulated
  const auto handle = own->form(options, timeout(), [&] {
    if (const auto others = node_group()) others->announce_forming();
    if (former != nullptr) former->leave();
  });
  auto info = info_;
  info.global_ranks.clear();
  info.traits = handle.traits;
  info.check_calls = info_.check_calls && !handle.traits.compares_calls;
  info.node_group = handle.node_group;
  info.membership = own;
  closed_ = kFormedAgain;
  close();
  return {handle.backend, std::move(info)};
}

void GroupState::replace(const ProcessGroup& former, const ProcessGroup& formed) {
  const auto before = present(former);
  const auto after = present(formed);
  if (before == after) return;
  before->close();
  auto replacement = before->replaces_.lock();
  if (!replacement) replacement = std::make_shared<Replacement>();
  replacement->present = after;
  after->replaces_ = replacement;
  before->replaced_by_ = replacement;
  before->replaced_.store(replacement.get(), std::memory_order_release);
}

void replace(const ProcessGroup& former, const ProcessGroup& formed) { GroupState::replace(former, formed); }

void GroupState::shut_down(c10d::Backend& backend) const noexcept {
  try {
    backend.shutdown();
  } catch (const std::exception& error) {
    lockstep::log(LogLevel::warning, fmt::format("{}: leaving the group failed: {}", whoami(), error.what()));
  }
}

// Also runs in a destructor, so a backend that cannot abort must not end the program.
void GroupState::abort(c10d::Backend& backend) const noexcept {
  try {
    backend.abort();
  } catch (const std::exception& error) {
    lockstep::log(LogLevel::warning,
                  fmt::format("{}: unfinished calls could not be ended: {}", whoami(), error.what()));
  }
}

void refuse_with_python(const GroupState& group, const std::string& what, const std::string& remedy) {
  if (!group.info().with_python) return;
  throw_error<ArgumentError>("{}: {} cannot be used together with Python ranks; {}", group.whoami(), what,
                             remedy);
}

}  // namespace lockstep::comm
