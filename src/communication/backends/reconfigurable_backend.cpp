// SPDX-License-Identifier: BSD-3-Clause
#include "backends/reconfigurable_backend.h"

#include <utility>

#include "backends/shm/shm_backend.h"
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

ReconfigureOptions options_of(const libtorch::ReconfigureOptions& options) {
  return {.uuid = options.uuid, .handles = options.handles, .timeout = options.timeout};
}

c10::intrusive_ptr<comm::FromC10d> ours(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return c10::intrusive_ptr<comm::FromC10d>::reclaim_copy(dynamic_cast<comm::FromC10d*>(backend.get()));
}

}  // namespace

ReconfigurableBackend::ReconfigurableBackend(std::string name, int rank, int size, BackendHandle handle,
                                             std::chrono::milliseconds timeout)
    : FromC10d(rank, size, name, handle.traits, timeout),
      name_(std::move(name)),
      membership_(std::move(handle.membership)),
      inner_(ours(handle.backend)) {}

ReconfigurableBackend::Inner ReconfigurableBackend::find() const {
  const MutexLock lock(mutex_);
  return inner_;
}

ReconfigurableBackend::Inner ReconfigurableBackend::require() const {
  if (auto inner = find()) return inner;
  throw_error<Error>(
      "the group of backend {} has no members yet: it was made with enable_reconfigure, so call "
      "reconfigure() first",
      name_);
}

const std::string ReconfigurableBackend::getBackendName() const {
  const auto inner = find();
  return inner ? inner->getBackendName() : name_;
}

bool ReconfigurableBackend::isInitialized() { return find() != nullptr; }

void ReconfigurableBackend::abort() {
  if (const auto inner = find()) inner->abort();
}

void ReconfigurableBackend::shutdown() {
  if (const auto inner = find()) inner->shutdown();
}

void ReconfigurableBackend::setTimeout(std::chrono::milliseconds timeout) {
  FromC10d::setTimeout(timeout);
  if (const auto inner = find()) inner->setTimeout(timeout);
}

at::Tensor ReconfigurableBackend::allocateTensor(long size, at::TensorOptions options) {
  return require()->allocateTensor(size, options);
}

comm::OperationPtr ReconfigurableBackend::start(const comm::Call& call, comm::Report report) {
  return require()->start(call, report);
}

std::string ReconfigurableBackend::get_reconfigure_handle() const {
  return membership_ ? membership_->handle() : FromC10d::get_reconfigure_handle();
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reconfigure(
    const libtorch::ReconfigureOptions& options) {
  if (!supportsReconfigure()) return FromC10d::reconfigure(options);
  const auto group = membership_->form(options_of(options), timeout(), [former = find()] {
    if (former) former->leave();
  });
  auto inner = ours(group.backend);
  {
    const MutexLock lock(mutex_);
    std::swap(inner_, inner);
  }
  change_members(group.backend->getRank(), group.backend->getSize(), group);
  return finished_work();
}

BackendHandle group_without_members(const std::string& name, const BackendRequest& request) {
  const auto traits = ShmBackend::traits();
  return {
      .backend = c10::make_intrusive<ReconfigurableBackend>(
          name, request.rank, request.size, BackendHandle{.backend = {}, .traits = traits}, request.timeout),
      .traits = traits};
}

BackendHandle in_place(BackendHandle handle, const BackendRequest& request) {
  if (!handle.membership) return handle;
  auto whole = handle;
  const auto name = handle.backend->getBackendName();
  if (dynamic_cast<ReconfigurableBackend*>(handle.backend.get()) != nullptr) handle.backend = {};
  whole.backend = c10::make_intrusive<ReconfigurableBackend>(name, request.rank, request.size,
                                                             std::move(handle), request.timeout);
  return whole;
}

}  // namespace lockstep::backends
