// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/base/mutex.h>

#include "backends/registry.h"
#include "comm/from_c10d.h"

namespace lockstep::backends {

// A c10d::Backend whose group is formed again in place, as by PyTorch. Its calls go to the backend of the
// present members; there is none before the first reconfigure() of a group with enable_reconfigure.
// Threads: as that backend, but no call during a reconfigure().
class ReconfigurableBackend final : public comm::FromC10d {
 public:
  // `handle.backend` may be null.
  ReconfigurableBackend(std::string name, int rank, int size, BackendHandle handle,
                        std::chrono::milliseconds timeout);

  const std::string getBackendName() const override;
  bool isInitialized() override;
  void abort() override;
  void shutdown() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  comm::OperationPtr start(const comm::Call& call, comm::Report report) override;

  bool supportsReconfigure() const override { return kMembersCanChange && membership_ != nullptr; }
  std::string get_reconfigure_handle() const override;
  WorkPtr reconfigure(const libtorch::ReconfigureOptions& options) override;

 private:
  using Inner = c10::intrusive_ptr<FromC10d>;

  Inner find() const;
  Inner require() const;

  std::string name_;
  std::shared_ptr<comm::Membership> membership_;
  mutable Mutex mutex_;
  Inner inner_ LOCKSTEP_GUARDED_BY(mutex_);
};

// For a rank that waits for its first reconfigure().
BackendHandle group_without_members(const std::string& name, const BackendRequest& request);

// The same group, as a ReconfigurableBackend where it can be formed again.
BackendHandle in_place(BackendHandle handle, const BackendRequest& request);

}  // namespace lockstep::backends
