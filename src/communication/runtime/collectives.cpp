// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/runtime/collectives.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

// The group of a call, and the line of the program for what is thrown before the call has it.
class Target {
 public:
  Target(const char* call, const std::optional<ProcessGroup>& group, std::source_location where)
      : call_(call), place_(where), group_(runtime::required_group(group, call)) {}

  const ProcessGroup* operator->() const { return &group_; }
  // The rank within the group.
  int rank_of(int global_rank) const {
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (group_.global_rank(rank) == global_rank) return rank;
    }
    throw_error<ArgumentError>(
        "{}: rank {} is not in group {}; src and dst are global ranks, in the default group 0 to its size - 1",
        call_, global_rank, group_.name());
  }

 private:
  const char* call_;
  CallerPlace place_;
  ProcessGroup group_;
};

}  // namespace

int get_group_rank(const ProcessGroup& group, int global_rank, std::source_location where) {
  return Target("get_group_rank", group, where).rank_of(global_rank);
}
int get_global_rank(const ProcessGroup& group, int group_rank) { return group.global_rank(group_rank); }

void all_reduce(const at::Tensor& tensor, ReduceOp op, const std::optional<ProcessGroup>& group,
                std::source_location where) {
  const Target on("all_reduce", group, where);
  on->all_reduce(tensor, op, where);
}
Work all_reduce_async(const at::Tensor& tensor, ReduceOp op, const std::optional<ProcessGroup>& group,
                      std::source_location where) {
  const Target on("all_reduce_async", group, where);
  return on->all_reduce_async(tensor, op, where);
}

void broadcast(const at::Tensor& tensor, int src, const std::optional<ProcessGroup>& group,
               std::source_location where) {
  const Target on("broadcast", group, where);
  on->broadcast(tensor, on.rank_of(src), where);
}
Work broadcast_async(const at::Tensor& tensor, int src, const std::optional<ProcessGroup>& group,
                     std::source_location where) {
  const Target on("broadcast_async", group, where);
  return on->broadcast_async(tensor, on.rank_of(src), where);
}

void reduce(const at::Tensor& tensor, int dst, ReduceOp op, const std::optional<ProcessGroup>& group,
            std::source_location where) {
  const Target on("reduce", group, where);
  on->reduce(tensor, on.rank_of(dst), op, where);
}
Work reduce_async(const at::Tensor& tensor, int dst, ReduceOp op, const std::optional<ProcessGroup>& group,
                  std::source_location where) {
  const Target on("reduce_async", group, where);
  return on->reduce_async(tensor, on.rank_of(dst), op, where);
}

void all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_gather", group, where);
  on->all_gather(tensor_list, tensor, where);
}
Work all_gather_async(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                      const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_gather_async", group, where);
  return on->all_gather_async(tensor_list, tensor, where);
}

void all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                            const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_gather_into_tensor", group, where);
  on->all_gather_into_tensor(output_tensor, input_tensor, where);
}
Work all_gather_into_tensor_async(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                                  const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_gather_into_tensor_async", group, where);
  return on->all_gather_into_tensor_async(output_tensor, input_tensor, where);
}

void gather(const at::Tensor& tensor, const std::vector<at::Tensor>& gather_list, int dst,
            const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("gather", group, where);
  on->gather(tensor, gather_list, on.rank_of(dst), where);
}
Work gather_async(const at::Tensor& tensor, const std::vector<at::Tensor>& gather_list, int dst,
                  const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("gather_async", group, where);
  return on->gather_async(tensor, gather_list, on.rank_of(dst), where);
}

void scatter(const at::Tensor& tensor, const std::vector<at::Tensor>& scatter_list, int src,
             const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("scatter", group, where);
  on->scatter(tensor, scatter_list, on.rank_of(src), where);
}
Work scatter_async(const at::Tensor& tensor, const std::vector<at::Tensor>& scatter_list, int src,
                   const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("scatter_async", group, where);
  return on->scatter_async(tensor, scatter_list, on.rank_of(src), where);
}

void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                    const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("reduce_scatter", group, where);
  on->reduce_scatter(output, input_list, op, where);
}
Work reduce_scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                          const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("reduce_scatter_async", group, where);
  return on->reduce_scatter_async(output, input_list, op, where);
}

void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                           const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("reduce_scatter_tensor", group, where);
  on->reduce_scatter_tensor(output, input, op, where);
}
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                 const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("reduce_scatter_tensor_async", group, where);
  return on->reduce_scatter_tensor_async(output, input, op, where);
}

void all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                const std::vector<at::Tensor>& input_tensor_list, const std::optional<ProcessGroup>& group,
                std::source_location where) {
  const Target on("all_to_all", group, where);
  on->all_to_all(output_tensor_list, input_tensor_list, where);
}
Work all_to_all_async(const std::vector<at::Tensor>& output_tensor_list,
                      const std::vector<at::Tensor>& input_tensor_list,
                      const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_to_all_async", group, where);
  return on->all_to_all_async(output_tensor_list, input_tensor_list, where);
}

void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& output_split_sizes,
                       const std::vector<std::int64_t>& input_split_sizes,
                       const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_to_all_single", group, where);
  on->all_to_all_single(output, input, output_split_sizes, input_split_sizes, where);
}
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<std::int64_t>& output_split_sizes,
                             const std::vector<std::int64_t>& input_split_sizes,
                             const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("all_to_all_single_async", group, where);
  return on->all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, where);
}

void send(const at::Tensor& tensor, int dst, const std::optional<ProcessGroup>& group, int tag,
          std::source_location where) {
  const Target on("send", group, where);
  on->send(tensor, on.rank_of(dst), tag, where);
}
Work isend(const at::Tensor& tensor, int dst, const std::optional<ProcessGroup>& group, int tag,
           std::source_location where) {
  const Target on("isend", group, where);
  return on->send_async(tensor, on.rank_of(dst), tag, where);
}

int recv(const at::Tensor& tensor, std::optional<int> src, const std::optional<ProcessGroup>& group, int tag,
         std::source_location where) {
  const Target on("recv", group, where);
  if (src) src = on.rank_of(*src);
  return on->global_rank(on->recv(tensor, src, tag, where));
}
Work irecv(const at::Tensor& tensor, std::optional<int> src, const std::optional<ProcessGroup>& group,
           int tag, std::source_location where) {
  const Target on("irecv", group, where);
  if (src) src = on.rank_of(*src);
  return on->recv_async(tensor, src, tag, where);
}

void barrier(const std::optional<ProcessGroup>& group, std::source_location where) {
  Target("barrier", group, where)->barrier(where);
}
Work barrier_async(const std::optional<ProcessGroup>& group, std::source_location where) {
  return Target("barrier_async", group, where)->barrier_async(where);
}
void monitored_barrier(const std::optional<ProcessGroup>& group, std::optional<Timeout> timeout,
                       bool wait_all_ranks, std::source_location where) {
  Target("monitored_barrier", group, where)->monitored_barrier(timeout, wait_all_ranks, where);
}

void all_gather_object(std::vector<std::string>& object_list, const std::string& obj,
                       const std::optional<ProcessGroup>& group, std::source_location where) {
  object_list = Target("all_gather_object", group, where)->all_gather_object(obj, where);
}
void broadcast_object_list(std::vector<std::string>& object_list, int src,
                           const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("broadcast_object_list", group, where);
  const int root = on.rank_of(src);
  for (auto& object : object_list) object = on->broadcast_object(object, root, where);
}
void gather_object(const std::string& obj, std::vector<std::string>& object_gather_list, int dst,
                   const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("gather_object", group, where);
  object_gather_list = on->gather_object(obj, on.rank_of(dst), where);
}
void scatter_object_list(std::vector<std::string>& scatter_object_output_list,
                         const std::vector<std::string>& scatter_object_input_list, int src,
                         const std::optional<ProcessGroup>& group, std::source_location where) {
  const Target on("scatter_object_list", group, where);
  scatter_object_output_list = {on->scatter_object(scatter_object_input_list, on.rank_of(src), where)};
}

}  // namespace lockstep
