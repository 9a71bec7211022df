// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "comm/call.h"

namespace lockstep::comm {

// Both enumerations list the operations in the same order.
static_assert(static_cast<int>(ReduceOp::SUM) == c10d::ReduceOp::SUM &&
              static_cast<int>(ReduceOp::AVG) == c10d::ReduceOp::AVG &&
              static_cast<int>(ReduceOp::MAX) == c10d::ReduceOp::MAX &&
              static_cast<int>(ReduceOp::BXOR) == c10d::ReduceOp::BXOR);

// Makes a CallBackend of any c10d::Backend: one virtual call for each Call. See Note [One call path].
//
// If the backend lacks AVG, the adapter requests a sum and divides it in wait(). Gloo exchanges lists of
// equal tensors only, so the adapter joins those of an all_to_all into one tensor. For MIN and MAX of
// floating-point numbers over Gloo see Note [Minimum and maximum over Gloo].
class ToC10d : public CallBackend {
 public:
  ToC10d(c10::intrusive_ptr<c10d::Backend> backend, BackendTraits traits, bool as_given);

  OperationPtr start(const Call& call, Report report) override;

 private:
  c10::intrusive_ptr<c10d::Work> submit(const Call& call, c10d::ReduceOp op) const;
  OperationPtr exchange_rows(const Call& call) const;
  bool is_gloo() const { return backend_->getBackendName() == "gloo"; }
  OperationPtr start_ordered(const Call& call) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  BackendTraits traits_;
  bool adapts_gloo_;
};

// The backend itself if it is a CallBackend, otherwise a ToC10d around it. Keeps the backend alive.
// `as_given`: Gloo gets the calls as they are, because other ranks may make them through PyTorch.
std::shared_ptr<CallBackend> calls_of(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      const BackendTraits& traits, bool as_given = false);

}  // namespace lockstep::comm
