// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "comm/composed_operations.h"

namespace lockstep::comm {

// A message carries elements in row-major order, whatever the layouts of the sender's and the receiver's
// tensors are. While this object lives, a call that has a tensor of another layout has a contiguous one in
// its place. PyTorch refuses such tensors.
class MessageOrder {
 public:
  explicit MessageOrder(Call& call) {
    if (!is_message(call.kind)) return;
    auto& tensors = call.kind == CallKind::send ? call.inputs : call.outputs;
    const auto& given = tensors.front();
    if (given.is_contiguous()) return;
    const c10::NoGradGuard no_grad;
    if (call.kind == CallKind::send) {
      row_major_ = given.contiguous();
    } else {
      row_major_ = at::empty(given.sizes(), given.options());
      received_ = given.detach();
    }
    tensors = row_major_;
  }
  MessageOrder(const MessageOrder&) = delete;
  MessageOrder& operator=(const MessageOrder&) = delete;

  // The operation of the call, which is to be waited for in its place. nullptr: it is complete.
  OperationPtr finish(OperationPtr operation) const {
    if (!row_major_.defined()) return operation;
    auto deliver = [from = row_major_, to = received_] {
      if (!to.defined()) return;
      const c10::InferenceMode mode(to.is_inference());
      const c10::NoGradGuard no_grad;
      to.copy_(from);
    };
    if (operation) return std::make_shared<Delivery>(std::move(operation), std::move(deliver));
    deliver();
    return nullptr;
  }

 private:
  class Delivery final : public FinishedOperation {
   public:
    Delivery(const OperationPtr& operation, std::function<void()> deliver)
        : FinishedOperation(operation, std::move(deliver)), message_(operation) {}
    int source_rank() const override { return message_->source_rank(); }
    c10::intrusive_ptr<c10d::Work> stream_work() const override { return message_->stream_work(); }

   private:
    OperationPtr message_;
  };

  at::Tensor row_major_;  // undefined: the call's own tensor is in this order
  at::Tensor received_;   // where a receive delivers
};

}  // namespace lockstep::comm
