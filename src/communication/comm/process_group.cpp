// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/comm/process_group.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/membership.h"
#include "comm/non_member.h"
#include "comm/pending_call.h"

namespace lockstep {

using comm::Call;
using comm::state_of;

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info) {
  if (!backend) throw_error<ArgumentError>("ProcessGroup {}: its backend is a null pointer", info.name);
  state_ = std::make_shared<comm::GroupState>(std::move(backend), std::move(info));
}

ProcessGroup::ProcessGroup(std::shared_ptr<comm::NonMember> outside) : non_member_(std::move(outside)) {}

int ProcessGroup::rank() const { return state_of(*this).rank(); }
int ProcessGroup::size() const { return state_of(*this).size(); }
const std::string& ProcessGroup::name() const {
  return non_member_ ? non_member_->group : state_of(*this).info().name;
}
const std::string& ProcessGroup::backend_name() const { return state_of(*this).backend_name(); }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_of(*this).timeout(); }
std::vector<CallRecord> ProcessGroup::recent_calls() const { return state_of(*this).log().recent(); }
c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return state_of(*this).backend(); }
bool ProcessGroup::supports_reconfigure() const { return state_of(*this).membership() != nullptr; }
std::string ProcessGroup::reconfigure_handle() const {
  return state_of(*this).required_membership()->handle();
}
ProcessGroup ProcessGroup::reconfigure(const ReconfigureOptions& options) const {
  return state_of(*this).form_again(options);
}
void ProcessGroup::close() const { state_of(*this).close(); }

int ProcessGroup::global_rank(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    throw_error<ArgumentError>("{}: there is no group rank {}", state_of(*this).whoami(), group_rank);
  }
  const auto& ranks = state_of(*this).info().global_ranks;
  return ranks.empty() ? group_rank : ranks[static_cast<std::size_t>(group_rank)];
}

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, Where where) const {
  comm::run(*this, {.kind = CallKind::all_reduce, .outputs = tensor, .op = op, .where = where});
}
Work ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op, Where where) const {
  return comm::start(*this, {.kind = CallKind::all_reduce, .outputs = tensor, .op = op, .where = where});
}

void ProcessGroup::broadcast(const Tensor& tensor, int src, Where where) const {
  comm::run(*this, {.kind = CallKind::broadcast, .outputs = tensor, .root = src, .where = where});
}
Work ProcessGroup::broadcast_async(const Tensor& tensor, int src, Where where) const {
  return comm::start(*this, {.kind = CallKind::broadcast, .outputs = tensor, .root = src, .where = where});
}

void ProcessGroup::reduce(const Tensor& tensor, int dst, ReduceOp op, Where where) const {
  comm::run(*this, {.kind = CallKind::reduce, .outputs = tensor, .op = op, .root = dst, .where = where});
}
Work ProcessGroup::reduce_async(const Tensor& tensor, int dst, ReduceOp op, Where where) const {
  return comm::start(*this,
                     {.kind = CallKind::reduce, .outputs = tensor, .op = op, .root = dst, .where = where});
}

void ProcessGroup::all_gather(const Tensors& output, const Tensor& input, Where where) const {
  comm::run(*this, {.kind = CallKind::all_gather, .inputs = input, .outputs = output, .where = where});
}
Work ProcessGroup::all_gather_async(const Tensors& output, const Tensor& input, Where where) const {
  return comm::start(*this,
                     {.kind = CallKind::all_gather, .inputs = input, .outputs = output, .where = where});
}

void ProcessGroup::all_gather_into_tensor(const Tensor& output, const Tensor& input, Where where) const {
  comm::run(*this,
            {.kind = CallKind::all_gather_into_tensor, .inputs = input, .outputs = output, .where = where});
}
Work ProcessGroup::all_gather_into_tensor_async(const Tensor& output, const Tensor& input,
                                                Where where) const {
  return comm::start(
      *this, {.kind = CallKind::all_gather_into_tensor, .inputs = input, .outputs = output, .where = where});
}

void ProcessGroup::gather(const Tensor& input, const Tensors& output, int dst, Where where) const {
  comm::run(*this,
            {.kind = CallKind::gather, .inputs = input, .outputs = output, .root = dst, .where = where});
}
Work ProcessGroup::gather_async(const Tensor& input, const Tensors& output, int dst, Where where) const {
  return comm::start(
      *this, {.kind = CallKind::gather, .inputs = input, .outputs = output, .root = dst, .where = where});
}

void ProcessGroup::scatter(const Tensor& output, const Tensors& input, int src, Where where) const {
  comm::run(*this,
            {.kind = CallKind::scatter, .inputs = input, .outputs = output, .root = src, .where = where});
}
Work ProcessGroup::scatter_async(const Tensor& output, const Tensors& input, int src, Where where) const {
  return comm::start(
      *this, {.kind = CallKind::scatter, .inputs = input, .outputs = output, .root = src, .where = where});
}

void ProcessGroup::reduce_scatter(const Tensor& output, const Tensors& input, ReduceOp op,
                                  Where where) const {
  comm::run(*this,
            {.kind = CallKind::reduce_scatter, .inputs = input, .outputs = output, .op = op, .where = where});
}
Work ProcessGroup::reduce_scatter_async(const Tensor& output, const Tensors& input, ReduceOp op,
                                        Where where) const {
  return comm::start(
      *this,
      {.kind = CallKind::reduce_scatter, .inputs = input, .outputs = output, .op = op, .where = where});
}

void ProcessGroup::reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op,
                                         Where where) const {
  comm::run(*this, {.kind = CallKind::reduce_scatter_tensor,
                    .inputs = input,
                    .outputs = output,
                    .op = op,
                    .where = where});
}
Work ProcessGroup::reduce_scatter_tensor_async(const Tensor& output, const Tensor& input, ReduceOp op,
                                               Where where) const {
  return comm::start(*this, {.kind = CallKind::reduce_scatter_tensor,
                             .inputs = input,
                             .outputs = output,
                             .op = op,
                             .where = where});
}

void ProcessGroup::all_to_all(const Tensors& output, const Tensors& input, Where where) const {
  comm::run(*this, {.kind = CallKind::all_to_all, .inputs = input, .outputs = output, .where = where});
}
Work ProcessGroup::all_to_all_async(const Tensors& output, const Tensors& input, Where where) const {
  return comm::start(*this,
                     {.kind = CallKind::all_to_all, .inputs = input, .outputs = output, .where = where});
}

void ProcessGroup::all_to_all_single(const Tensor& output, const Tensor& input,
                                     const std::vector<std::int64_t>& output_split_sizes,
                                     const std::vector<std::int64_t>& input_split_sizes, Where where) const {
  comm::run(*this, {.kind = CallKind::all_to_all_single,
                    .inputs = input,
                    .outputs = output,
                    .output_splits = output_split_sizes,
                    .input_splits = input_split_sizes,
                    .where = where});
}
Work ProcessGroup::all_to_all_single_async(const Tensor& output, const Tensor& input,
                                           const std::vector<std::int64_t>& output_split_sizes,
                                           const std::vector<std::int64_t>& input_split_sizes,
                                           Where where) const {
  return comm::start(*this, {.kind = CallKind::all_to_all_single,
                             .inputs = input,
                             .outputs = output,
                             .output_splits = output_split_sizes,
                             .input_splits = input_split_sizes,
                             .where = where});
}

void ProcessGroup::send(const Tensor& tensor, int dst, int tag, Where where) const {
  comm::run(*this, {.kind = CallKind::send, .inputs = tensor, .peer = dst, .tag = tag, .where = where});
}
Work ProcessGroup::send_async(const Tensor& tensor, int dst, int tag, Where where) const {
  return comm::start(*this,
                     {.kind = CallKind::send, .inputs = tensor, .peer = dst, .tag = tag, .where = where});
}

int ProcessGroup::recv(const Tensor& tensor, std::optional<int> src, int tag, Where where) const {
  return comm::run(*this, {.kind = CallKind::recv,
                           .outputs = tensor,
                           .peer = src.value_or(comm::kAnyRank),
                           .tag = tag,
                           .where = where});
}
Work ProcessGroup::recv_async(const Tensor& tensor, std::optional<int> src, int tag, Where where) const {
  return comm::start(*this, {.kind = CallKind::recv,
                             .outputs = tensor,
                             .peer = src.value_or(comm::kAnyRank),
                             .tag = tag,
                             .where = where});
}

void ProcessGroup::barrier(Where where) const { comm::run(*this, {.where = where}); }
Work ProcessGroup::barrier_async(Where where) const { return comm::start(*this, {.where = where}); }
void ProcessGroup::monitored_barrier(std::optional<Timeout> timeout, bool wait_all_ranks, Where where) const {
  comm::run(*this, {.monitored = true,
                    .wait_all_ranks = wait_all_ranks,
                    .timeout = timeout.value_or(this->timeout()),
                    .where = where});
}

}  // namespace lockstep
