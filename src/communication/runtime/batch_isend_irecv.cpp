// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/memory_overlap.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

ProcessGroup group_of(const P2POp& message) {
  return runtime::required_group(message.group, "batch_isend_irecv");
}

comm::Call call_of(const P2POp& message, std::source_location where) {
  const bool sends = message.op == P2POp::isend;
  const at::TensorList tensor = message.tensor;
  return {.kind = sends ? CallKind::send : CallKind::recv,
          .inputs = sends ? tensor : at::TensorList{},
          .outputs = sends ? at::TensorList{} : tensor,
          .peer = message.peer,
          .tag = message.tag,
          .where = where};
}

// The messages move at one time, in any order.
void check_memory(const std::vector<P2POp>& messages) {
  std::vector<at::Tensor> sent, received;
  std::vector<std::size_t> sends, receives;  // their places in the list
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool is_send = messages[i].op == P2POp::isend;
    (is_send ? sent : received).push_back(messages[i].tensor);
    (is_send ? sends : receives).push_back(i);
  }
  const auto overlap = comm::find_overlap(received, sent, [](std::size_t, std::size_t) { return false; });
  if (!overlap) return;
  throw_error<ArgumentError>(
      "batch_isend_irecv: the tensors of messages {} and {} share memory, and message {} receives; each "
      "receive needs memory of its own",
      receives[overlap->output], (overlap->is_input ? sends : receives)[overlap->other],
      receives[overlap->output]);
}

// The other ranks wait for all messages, so none starts before all are right.
void check(const std::vector<P2POp>& messages, const ProcessGroup& group, std::source_location where) {
  const auto& state = comm::state_of(group);
  for (const auto& message : messages) {
    if (&comm::state_of(group_of(message)) != &state) {
      throw_error<ArgumentError>(
          "batch_isend_irecv: messages in group {} and in group {}; make a batch for each group",
          group.name(), group_of(message).name());
    }
    state.rules().check(call_of(message, where));
    if (message.tensor.is_cuda() && group.backend_name().find("nccl") != std::string::npos) {
      throw_error<ArgumentError>(
          "batch_isend_irecv: a tensor on {} over {}: NCCL's messages block each other; call send_async() "
          "and recv_async() in an order in which all ranks can proceed if each call waits for its end, or "
          "use all_to_all()",
          message.tensor.device().str(), group.backend_name());
    }
  }
  check_memory(messages);
}

}  // namespace

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list, std::source_location where) {
  if (p2p_op_list.empty()) throw_error<ArgumentError>("batch_isend_irecv: the list has no messages");
  const auto group = group_of(p2p_op_list.front());
  check(p2p_op_list, group, where);
  std::vector<Work> works;
  for (const auto& message : p2p_op_list) {
    works.push_back(message.op == P2POp::isend
                        ? group.send_async(message.tensor, message.peer, message.tag, where)
                        : group.recv_async(message.tensor, message.peer, message.tag, where));
  }
  return works;
}

}  // namespace lockstep
