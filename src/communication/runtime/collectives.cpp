// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/runtime/collectives.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/memory_overlap.h"
#include "comm/non_member.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

// The group of a call, and the line of the program for what is thrown before the call has it.
class Target {
 public:
  Target(const char* call, const std::optional<ProcessGroup>& group, std::source_location where)
      : call_(call),
        where_(where),
        place_(where),
        group_(group ? *group : runtime::require_run(call).group()) {}

  const ProcessGroup* operator->() const { return &group_; }
  const ProcessGroup& operator*() const { return group_; }
  // Whether this rank is outside of the group, so that the call does nothing.
  bool skips() const { return comm::skips(group_, call_, where_); }
  // The rank within the group.
  int rank_of(int global_rank) const {
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (group_.global_rank(rank) == global_rank) return rank;
    }
    throw_error<ArgumentError>(
        "{}: rank {} is not in group {}; src, dst and peer are global ranks, in the default group 0 to its size - 1",
        call_, global_rank, group_.name());
  }

 private:
  const char* call_;
  std::source_location where_;
  CallerPlace place_;
  ProcessGroup group_;
};

}  // namespace

int get_group_rank(const ProcessGroup& group, int global_rank, std::source_location where) {
  const Target on("get_group_rank", runtime::required_group(group, "get_group_rank"), where);
  return on.rank_of(global_rank);
}
int get_global_rank(const ProcessGroup& group, int group_rank) { return group.global_rank(group_rank); }

void all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveOptions& options, AsyncOp /*async_op*/,
                std::source_location where) {
  const Target on("all_reduce", options.group, where);
  if (on.skips()) return;
  on->all_reduce(tensor, op, where);
}
Work all_reduce_async(const at::Tensor& tensor, ReduceOp op, const CollectiveOptions& options,
                      std::source_location where) {
  const Target on("all_reduce_async", options.group, where);
  if (on.skips()) return {};
  return on->all_reduce_async(tensor, op, where);
}

void broadcast(const at::Tensor& tensor, RequiredRank src, const CollectiveOptions& options,
               AsyncOp /*async_op*/, std::source_location where) {
  const Target on("broadcast", options.group, where);
  if (on.skips()) return;
  on->broadcast(tensor, on.rank_of(src), where);
}
Work broadcast_async(const at::Tensor& tensor, RequiredRank src, const CollectiveOptions& options,
                     std::source_location where) {
  const Target on("broadcast_async", options.group, where);
  if (on.skips()) return {};
  return on->broadcast_async(tensor, on.rank_of(src), where);
}

void reduce(const at::Tensor& tensor, int dst, ReduceOp op, const CollectiveOptions& options,
            AsyncOp /*async_op*/, std::source_location where) {
  const Target on("reduce", options.group, where);
  if (on.skips()) return;
  on->reduce(tensor, on.rank_of(dst), op, where);
}
Work reduce_async(const at::Tensor& tensor, int dst, ReduceOp op, const CollectiveOptions& options,
                  std::source_location where) {
  const Target on("reduce_async", options.group, where);
  if (on.skips()) return {};
  return on->reduce_async(tensor, on.rank_of(dst), op, where);
}

void all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                const CollectiveOptions& options, AsyncOp /*async_op*/, std::source_location where) {
  const Target on("all_gather", options.group, where);
  if (on.skips()) return;
  on->all_gather(tensor_list, tensor, where);
}
Work all_gather_async(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                      const CollectiveOptions& options, std::source_location where) {
  const Target on("all_gather_async", options.group, where);
  if (on.skips()) return {};
  return on->all_gather_async(tensor_list, tensor, where);
}

void all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                            const CollectiveOptions& options, AsyncOp /*async_op*/,
                            std::source_location where) {
  const Target on("all_gather_into_tensor", options.group, where);
  if (on.skips()) return;
  on->all_gather_into_tensor(output_tensor, input_tensor, where);
}
Work all_gather_into_tensor_async(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                                  const CollectiveOptions& options, std::source_location where) {
  const Target on("all_gather_into_tensor_async", options.group, where);
  if (on.skips()) return {};
  return on->all_gather_into_tensor_async(output_tensor, input_tensor, where);
}

void gather(const at::Tensor& tensor, at::TensorList gather_list, int dst, const CollectiveOptions& options,
            AsyncOp /*async_op*/, std::source_location where) {
  const Target on("gather", options.group, where);
  if (on.skips()) return;
  on->gather(tensor, gather_list.vec(), on.rank_of(dst), where);
}
Work gather_async(const at::Tensor& tensor, at::TensorList gather_list, int dst,
                  const CollectiveOptions& options, std::source_location where) {
  const Target on("gather_async", options.group, where);
  if (on.skips()) return {};
  return on->gather_async(tensor, gather_list.vec(), on.rank_of(dst), where);
}

void scatter(const at::Tensor& tensor, at::TensorList scatter_list, int src, const CollectiveOptions& options,
             AsyncOp /*async_op*/, std::source_location where) {
  const Target on("scatter", options.group, where);
  if (on.skips()) return;
  on->scatter(tensor, scatter_list.vec(), on.rank_of(src), where);
}
Work scatter_async(const at::Tensor& tensor, at::TensorList scatter_list, int src,
                   const CollectiveOptions& options, std::source_location where) {
  const Target on("scatter_async", options.group, where);
  if (on.skips()) return {};
  return on->scatter_async(tensor, scatter_list.vec(), on.rank_of(src), where);
}

void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                    const CollectiveOptions& options, AsyncOp /*async_op*/, std::source_location where) {
  const Target on("reduce_scatter", options.group, where);
  if (on.skips()) return;
  on->reduce_scatter(output, input_list, op, where);
}
Work reduce_scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                          const CollectiveOptions& options, std::source_location where) {
  const Target on("reduce_scatter_async", options.group, where);
  if (on.skips()) return {};
  return on->reduce_scatter_async(output, input_list, op, where);
}

void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                           const CollectiveOptions& options, AsyncOp /*async_op*/,
                           std::source_location where) {
  const Target on("reduce_scatter_tensor", options.group, where);
  if (on.skips()) return;
  on->reduce_scatter_tensor(output, input, op, where);
}
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                 const CollectiveOptions& options, std::source_location where) {
  const Target on("reduce_scatter_tensor_async", options.group, where);
  if (on.skips()) return {};
  return on->reduce_scatter_tensor_async(output, input, op, where);
}

void all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                const std::vector<at::Tensor>& input_tensor_list, const CollectiveOptions& options,
                AsyncOp /*async_op*/, std::source_location where) {
  const Target on("all_to_all", options.group, where);
  if (on.skips()) return;
  on->all_to_all(output_tensor_list, input_tensor_list, where);
}
Work all_to_all_async(const std::vector<at::Tensor>& output_tensor_list,
                      const std::vector<at::Tensor>& input_tensor_list, const CollectiveOptions& options,
                      std::source_location where) {
  const Target on("all_to_all_async", options.group, where);
  if (on.skips()) return {};
  return on->all_to_all_async(output_tensor_list, input_tensor_list, where);
}

void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& output_split_sizes,
                       const std::vector<std::int64_t>& input_split_sizes, const CollectiveOptions& options,
                       AsyncOp /*async_op*/, std::source_location where) {
  const Target on("all_to_all_single", options.group, where);
  if (on.skips()) return;
  on->all_to_all_single(output, input, output_split_sizes, input_split_sizes, where);
}
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<std::int64_t>& output_split_sizes,
                             const std::vector<std::int64_t>& input_split_sizes,
                             const CollectiveOptions& options, std::source_location where) {
  const Target on("all_to_all_single_async", options.group, where);
  if (on.skips()) return {};
  return on->all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, where);
}

void send(const at::Tensor& tensor, int dst, const CollectiveOptions& options, int tag,
          std::source_location where) {
  const Target on("send", options.group, where);
  if (on.skips()) return;
  on->send(tensor, on.rank_of(dst), tag, where);
}
Work isend(const at::Tensor& tensor, int dst, const CollectiveOptions& options, int tag,
           std::source_location where) {
  const Target on("isend", options.group, where);
  if (on.skips()) return {};
  return on->send_async(tensor, on.rank_of(dst), tag, where);
}

int recv(const at::Tensor& tensor, std::optional<int> src, const CollectiveOptions& options, int tag,
         std::source_location where) {
  const Target on("recv", options.group, where);
  if (on.skips()) return -1;
  if (src) src = on.rank_of(*src);
  return on->global_rank(on->recv(tensor, src, tag, where));
}
Work irecv(const at::Tensor& tensor, std::optional<int> src, const CollectiveOptions& options, int tag,
           std::source_location where) {
  const Target on("irecv", options.group, where);
  if (on.skips()) return {};
  if (src) src = on.rank_of(*src);
  return on->recv_async(tensor, src, tag, where);
}

namespace {

constexpr const char* kBatch = "batch_isend_irecv";

comm::Call call_of(const P2POp& message, int peer, std::source_location where) {
  const at::TensorList tensor = message.tensor;
  return {.kind = message.op.sends() ? CallKind::send : CallKind::recv,
          .inputs = message.op.sends() ? tensor : at::TensorList{},
          .outputs = message.op.sends() ? at::TensorList{} : tensor,
          .peer = peer,
          .tag = message.tag,
          .where = where};
}

// The rank within the group.
int peer_of(const P2POp& message, std::size_t index, const Target& on) {
  if (message.peer.has_value() == message.group_peer.has_value()) {
    throw_error<ArgumentError>(
        "{}: message {} has {}; set one of them: peer is a global rank, group_peer a rank within the group",
        kBatch, index, message.peer ? "peer and group_peer" : "neither peer nor group_peer");
  }
  return message.peer ? on.rank_of(*message.peer) : *message.group_peer;
}

// The messages move at one time, in any order.
void check_memory(const std::vector<P2POp>& messages) {
  std::vector<at::Tensor> sent, received;
  std::vector<std::size_t> sends, receives;  // their places in the list
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool is_send = messages[i].op.sends();
    (is_send ? sent : received).push_back(messages[i].tensor);
    (is_send ? sends : receives).push_back(i);
  }
  const auto overlap = comm::find_overlap(received, sent, [](std::size_t, std::size_t) { return false; });
  if (!overlap) return;
  throw_error<ArgumentError>(
      "{}: the tensors of messages {} and {} share memory, and message {} receives; each receive needs memory of its "
      "own",
      kBatch, receives[overlap->output], (overlap->is_input ? sends : receives)[overlap->other],
      receives[overlap->output]);
}

// The peers, as ranks within the group. The other ranks wait for all messages, so none starts before all are right.
std::vector<int> checked_peers(const std::vector<P2POp>& messages, const Target& on,
                               std::source_location where) {
  const auto& state = comm::state_of(*on);
  std::vector<int> peers;
  for (const auto& message : messages) {
    const auto group = runtime::required_group(message.group, kBatch);
    if (&comm::state_of(group) != &state) {
      throw_error<ArgumentError>("{}: messages in group {} and in group {}; make a batch for each group",
                                 kBatch, on->name(), group.name());
    }
    peers.push_back(peer_of(message, peers.size(), on));
    state.rules().check(call_of(message, peers.back(), where));
    if (message.tensor.is_cuda() && on->backend_name().find("nccl") != std::string::npos) {
      throw_error<ArgumentError>(
          "{}: a tensor on {} over {}: NCCL's messages block each other; call isend() and irecv() in an order in "
          "which all ranks can proceed if each call waits for its end, or use all_to_all()",
          kBatch, message.tensor.device().str(), on->backend_name());
    }
  }
  check_memory(messages);
  return peers;
}

}  // namespace

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list, std::source_location where) {
  const CallerPlace place(where);
  if (p2p_op_list.empty()) throw_error<ArgumentError>("{}: the list has no messages", kBatch);
  const Target on(kBatch, runtime::required_group(p2p_op_list.front().group, kBatch), where);
  const auto peers = checked_peers(p2p_op_list, on, where);
  std::vector<Work> works;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto& message = p2p_op_list[i];
    works.push_back(message.op.sends() ? on->send_async(message.tensor, peers[i], message.tag, where)
                                       : on->recv_async(message.tensor, peers[i], message.tag, where));
  }
  return works;
}

void barrier(const CollectiveOptions& options, AsyncOp /*async_op*/, std::source_location where) {
  const Target on("barrier", options.group, where);
  if (on.skips()) return;
  on->barrier(where);
}
Work barrier_async(const CollectiveOptions& options, std::source_location where) {
  const Target on("barrier_async", options.group, where);
  if (on.skips()) return {};
  return on->barrier_async(where);
}
void monitored_barrier(const std::optional<ProcessGroup>& group, std::optional<Timeout> timeout,
                       bool wait_all_ranks, std::source_location where) {
  const Target on("monitored_barrier", group, where);
  if (on.skips()) return;
  on->monitored_barrier(timeout, wait_all_ranks, where);
}

void all_gather_object(std::vector<std::string>& object_list, const std::string& obj,
                       const CollectiveOptions& options, std::source_location where) {
  const Target on("all_gather_object", options.group, where);
  if (on.skips()) return;
  object_list = on->all_gather_object(obj, where);
}
void broadcast_object_list(std::vector<std::string>& object_list, int src, const CollectiveOptions& options,
                           std::source_location where) {
  const Target on("broadcast_object_list", options.group, where);
  if (on.skips()) return;
  const int root = on.rank_of(src);
  for (auto& object : object_list) object = on->broadcast_object(object, root, where);
}
void gather_object(const std::string& obj, std::vector<std::string>& object_gather_list, int dst,
                   const CollectiveOptions& options, std::source_location where) {
  const Target on("gather_object", options.group, where);
  if (on.skips()) return;
  object_gather_list = on->gather_object(obj, on.rank_of(dst), where);
}
void scatter_object_list(std::vector<std::string>& scatter_object_output_list,
                         const std::vector<std::string>& scatter_object_input_list, int src,
                         const CollectiveOptions& options, std::source_location where) {
  const Target on("scatter_object_list", options.group, where);
  if (on.skips()) return;
  scatter_object_output_list = {on->scatter_object(scatter_object_input_list, on.rank_of(src), where)};
}

}  // namespace lockstep
