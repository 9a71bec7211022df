// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/timeout.h>
#include <lockstep/comm/backend.h>
#include <lockstep/node/call_record.h>

namespace lockstep {

class ProcessGroup;
struct CollectiveOptions;
namespace comm {
class GroupState;
class Membership;
struct NonMember;
class PendingCall;
}  // namespace comm
namespace node {
class NodeGroup;
}

/// An asynchronous call on a process group. PyTorch: `torch.distributed.Work`.
///
/// Copies refer to the same call. The tensors of the call must not be read or written before wait() has
/// returned (for CUDA: before work that was queued after wait() on the same stream). Dropping a Work without
/// waiting is allowed; the call continues and keeps its tensors alive. One thread at a time.
class Work {
 public:
  /// Refers to no call; wait() returns at once.
  Work() = default;
  explicit Work(std::shared_ptr<comm::PendingCall> call) : call_(std::move(call)) {}

  /// Blocks until the results are available, for at most the group's timeout; later calls do nothing. For
  /// CUDA, the current stream waits instead of the host. Throws TimeoutError, PeerLost or Error naming the
  /// call, its source line and the rank.
  void wait() const;
  /// wait() for at most `timeout` instead of the group's timeout.
  void wait(Timeout timeout) const;

  /// Whether wait() would return, or throw, without blocking.
  bool is_completed() const;

  /// This Work: `work->wait()` is work.wait(), as with the pointers of c10d.
  const Work* operator->() const { return this; }

  /// Calls `callback` once when the call has ended, after the callbacks before it, and returns this Work. The
  /// thread whose wait() ends the call, on any copy, runs it before that wait() returns; if the call has been
  /// waited for, then() runs it at once. Nothing runs in the background: without a wait() it is never called,
  /// nor if the call fails. wait() throws its exception, and then calls none of those after it. For CUDA, work
  /// that it queues on the current stream follows the call. PyTorch: `work.get_future().then`.
  ///
  ///     auto work = group.all_reduce_async(sum).then([=] { sum.div_(group.size()); });
  Work then(std::function<void()> callback) const;

  /// The sending rank of a receive from any rank, after wait(). Throws ArgumentError for other calls.
  int source_rank() const;

  /// The call as it was recorded when issued.
  const CallRecord& record() const;

 private:
  std::shared_ptr<comm::PendingCall> call_;
};

/// An asynchronous call that carries strings or bytes, e.g. all_gather_object_async(). The call itself
/// exchanges the lengths, so computation can go on until all ranks have made it. wait() carries the objects
/// and is a blocking collective: all ranks make it, in the same order among the group's other calls, or none
/// does. Copies refer to the same call and share its result. One thread at a time.
template <typename Objects>
class ObjectWork {
 public:
  /// Carries the objects, within a limit if there is one, else within the group's timeout.
  using Receive = std::function<Objects(std::optional<Timeout> limit)>;

  ObjectWork(Work lengths, Receive receive)
      : call_(std::make_shared<Call>(Call{.lengths = std::move(lengths), .receive = std::move(receive)})) {}

  /// Returns the objects, which live as long as a copy of this ObjectWork. Later calls, on any copy, return them
  /// again. Throws as Work::wait().
  const Objects& wait() {
    if (!call_->objects) {
      call_->lengths.wait();
      receive(std::nullopt);
    }
    return *call_->objects;
  }
  /// As wait(), with `timeout` as the limit of both the lengths and the objects.
  const Objects& wait(Timeout timeout) {
    if (!call_->objects) {
      const auto end = std::chrono::steady_clock::now() + timeout.milliseconds();
      call_->lengths.wait(timeout);
      const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      receive(std::max(rest, std::chrono::milliseconds(1)));
    }
    return *call_->objects;
  }

  /// Calls `callback` with the objects, as Work::then() does.
  ObjectWork then(std::function<void(const Objects&)> callback) {
    call_->objects ? callback(*call_->objects) : call_->after.push_back(std::move(callback));
    return *this;
  }

  /// Whether all ranks have made the call, so that wait() only waits for ranks that do not wait yet.
  bool is_completed() const { return call_->lengths.is_completed(); }

 private:
  struct Call {
    Work lengths = {};
    Receive receive = {};
    std::optional<Objects> objects = {};
    std::vector<std::function<void(const Objects&)>> after = {};
  };

  void receive(std::optional<Timeout> limit) {
    call_->objects = call_->receive(limit);
    for (const auto& callback : std::exchange(call_->after, {})) callback(*call_->objects);
  }

  std::shared_ptr<Call> call_;
};

/// The properties of a ProcessGroup besides its backend.
struct ProcessGroupInfo {
  std::string name = "default";                ///< for messages
  std::vector<int> global_ranks = {};          ///< [i] = the global rank of group rank i; empty: i itself
  Timeout timeout = std::chrono::minutes(30);  ///< the backend's, for messages
  BackendTraits traits = {};                   ///< what the backend can do
  /// Whether the ranks compare each collective before they run it, so that different calls are a DesyncError
  /// on all ranks with any backend. shm always compares. PyTorch: `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
  bool check_calls = false;
  /// Whether ranks may run PyTorch's torch.distributed, see InitOptions::with_python.
  bool with_python = false;
  /// The node-local group, if all ranks run on one host. Lockstep's backends create it.
  std::shared_ptr<node::NodeGroup> node_group = {};
  /// For reconfigure(). Lockstep's backends create it.
  std::shared_ptr<comm::Membership> membership = {};
};

/// Arguments of ProcessGroup::reconfigure(), the same on all members. PyTorch: `ReconfigureOptions`.
struct ReconfigureOptions {
  /// Names this forming of the group. One that the group has not used before, even in a forming that failed.
  std::int64_t uuid = 0;
  /// The reconfigure_handle() of each member. A vector is in rank order. With a set the ranks of a
  /// host are neighbours, each host's in their former order.
  std::variant<std::unordered_set<std::string>, std::vector<std::string>> handles = {};
  /// How long to wait for the other members. Default: the timeout of the group.
  std::optional<Timeout> timeout = std::nullopt;
};

/// A group of ranks and the collectives between them. PyTorch: `torch.distributed` and its ProcessGroup.
///
/// Copies refer to the same group. Any `c10d::Backend` can carry the calls. They are numbered and recorded
/// with the caller's source line.
///
/// A rank outside of a group has a ProcessGroup, too, from new_group() or split_group(): it converts to false, and
/// all functions but name() throw ArgumentError. Nor is it the default group for functions that take a group:
/// free collectives, e.g. all_reduce(tensor, op, group), warn once and do nothing, get_rank() and
/// get_world_size() return -1, destroy_process_group() does nothing, others throw. PyTorch:
/// `GroupMember.NON_GROUP_MEMBER`.
///
///     if (const auto pair = lockstep::new_group({0, 1})) pair.all_reduce(sum);
///
/// Rules for every collective:
/// - All ranks of the group make the same calls in the same order, from one thread at a time.
/// - `src` and `dst` are ranks within this group, 0 .. size()-1 (PyTorch: `group_src`, `group_dst`).
/// - Tensors are dense and contiguous, and the backend supports their device and dtype. In-place calls on one
///   tensor (all_reduce, broadcast, reduce, send, recv) also accept any non-overlapping dense layout, e.g.
///   channels_last, which must be the same on all ranks. Tensors may be empty. All tensors of a call are on
///   one device.
/// - Each output has memory of its own: it shares none with another output, or with an input except in the
///   in-place form that a call describes. Inputs may share memory with each other. The check compares the
///   bytes of the elements, whatever the storage.
/// - From an `_async` call until its Work has ended, its outputs must be neither read, changed nor passed to
///   another call, and its inputs must not be changed. This is not checked.
/// - Wrong arguments throw ArgumentError before anything is sent. Blocking calls throw TimeoutError,
///   PeerLost or Error as Work::wait() does. The `_async` form returns a Work to wait() for.
class ProcessGroup {
 public:
  /// A line of the program: each call is recorded with that of its caller.
  using Where = std::source_location;
  /// A tensor.
  using Tensor = at::Tensor;
  /// A list of tensors.
  using Tensors = std::vector<at::Tensor>;

  /// Wraps any c10d backend, including third-party ones. `info.traits` describes what it supports; with empty
  /// `dtypes`, element types are not checked.
  ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info);
  /// Does not compile: PyTorch's `group=None`.
  template <std::same_as<decltype(nullptr)> None>
  ProcessGroup(None /*none*/) {  // NOLINT: implicit
    static_assert(sizeof(None) == 0, "for the default group leave the group out, or write {}");
  }

  /// Whether this rank is in the group; false, too, after the group has been moved from. PyTorch:
  /// `group != GroupMember.NON_GROUP_MEMBER`.
  explicit operator bool() const { return state_ != nullptr; }
  operator CollectiveOptions() const;  ///< as the argument of a free collective (runtime/collectives.h)
  int rank() const;                    ///< of this process within this group
  /// The number of ranks of the group.
  int size() const;
  /// The name of the group.
  const std::string& name() const;
  const std::string& backend_name() const;  ///< "gloo", "fake", ...
  /// The time limit of each call.
  std::chrono::milliseconds timeout() const;
  /// The rank in the default group of group rank `group_rank`.
  int global_rank(int group_rank) const;

  /// The last calls (128 at most) on this rank, oldest first.
  std::vector<CallRecord> recent_calls() const;
  /// The underlying backend. Calls made on it directly are not numbered or recorded.
  c10::intrusive_ptr<c10d::Backend> backend() const;

  /// Whether reconfigure() can form the group again: over shm, and hierarchical over gloo, as its only
  /// backend, unless it is closed. PyTorch: `supports_reconfigure`.
  bool supports_reconfigure() const;
  /// Stands for this process in the options of reconfigure(), on every member; the program passes it to them,
  /// e.g. through a store. Changes when reconfigure() succeeds. Throws ArgumentError if the
  /// group cannot be formed again, Error if it is closed. PyTorch: `get_reconfigure_handle`.
  std::string reconfigure_handle() const;
  /// Forms the group again, of other members: without the ranks that are lost, or with processes that were no
  /// ranks (InitOptions::enable_reconfigure). Blocks until all members have called it, and returns the new
  /// group. Its ranks and numbers of calls begin again; global ranks are its own ranks.
  ///
  /// First this rank leaves the old group: its calls in progress throw Error, those of other ranks go on
  /// unless they need this rank. From then on calls on the old group throw Error; reconfigure() on it, with
  /// another uuid, is possible until one has succeeded. It does not matter whether the old group has failed.
  /// Memory that the backend has allocated, as for DDP's buckets, stays valid and registered. For the default
  /// group use Context::reconfigure().
  ///
  /// Throws ArgumentError for wrong options, before anything has changed; RendezvousError if a member has
  /// used the uuid, passes other handles, dies meanwhile or does not call it in time. The error is that of
  /// all members, and names the rank. PyTorch: `reconfigure`, which changes the group in place.
  ProcessGroup reconfigure(const ReconfigureOptions& options) const;

  /// Closes the connections; every later call throws. The destructor of init()'s context does the same.
  void close() const;

  /// Every rank's `tensor` becomes the reduction of all, in place. PyTorch: `all_reduce`.
  void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::SUM, Where where = Where::current()) const;
  /// all_reduce() without waiting. PyTorch: `all_reduce(async_op=True)`.
  Work all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                        Where where = Where::current()) const;

  /// Every rank's `tensor` becomes that of `src`. PyTorch: `broadcast`.
  void broadcast(const Tensor& tensor, int src, Where where = Where::current()) const;
  /// broadcast() without waiting. PyTorch: `broadcast(async_op=True)`.
  Work broadcast_async(const Tensor& tensor, int src, Where where = Where::current()) const;

  /// `tensor` of rank `dst` becomes the reduction; on other ranks its contents are unspecified afterwards.
  /// PyTorch: `reduce`.
  void reduce(const Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM,
              Where where = Where::current()) const;
  /// reduce() without waiting. PyTorch: `reduce(async_op=True)`.
  Work reduce_async(const Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM,
                    Where where = Where::current()) const;

  /// `output[i]` becomes rank i's `input`; size() outputs of input's shape and dtype. With shm, shapes may
  /// differ between ranks. In place: `input` is output[rank()]. PyTorch: `all_gather`.
  void all_gather(const Tensors& output, const Tensor& input, Where where = Where::current()) const;
  /// all_gather() without waiting. PyTorch: `all_gather(async_op=True)`.
  Work all_gather_async(const Tensors& output, const Tensor& input, Where where = Where::current()) const;

  /// `output` holds size() * input.numel() elements: the inputs in rank order. In place:
  /// `input` is part rank() of `output`. PyTorch: `all_gather_into_tensor`.
  void all_gather_into_tensor(const Tensor& output, const Tensor& input,
                              Where where = Where::current()) const;
  /// all_gather_into_tensor() without waiting. PyTorch: `all_gather_into_tensor(async_op=True)`.
  Work all_gather_into_tensor_async(const Tensor& output, const Tensor& input,
                                    Where where = Where::current()) const;

  /// On rank `dst`, output[i] becomes rank i's `input`. On other ranks `output` is empty. In place: `input`
  /// is output[rank()]. PyTorch: `gather`.
  void gather(const Tensor& input, const Tensors& output, int dst, Where where = Where::current()) const;
  /// gather() without waiting. PyTorch: `gather(async_op=True)`.
  Work gather_async(const Tensor& input, const Tensors& output, int dst,
                    Where where = Where::current()) const;

  /// `output` becomes input[rank()] of rank `src`. On other ranks `input` is empty. In place: `output` is
  /// input[rank()]. PyTorch: `scatter`.
  void scatter(const Tensor& output, const Tensors& input, int src, Where where = Where::current()) const;
  /// scatter() without waiting. PyTorch: `scatter(async_op=True)`.
  Work scatter_async(const Tensor& output, const Tensors& input, int src,
                     Where where = Where::current()) const;

  /// `output` becomes the reduction of all ranks' input[rank()]; size() inputs of output's shape and dtype.
  /// In place: `output` is input[rank()]. PyTorch: `reduce_scatter`.
  void reduce_scatter(const Tensor& output, const Tensors& input, ReduceOp op = ReduceOp::SUM,
                      Where where = Where::current()) const;
  /// reduce_scatter() without waiting. PyTorch: `reduce_scatter(async_op=True)`.
  Work reduce_scatter_async(const Tensor& output, const Tensors& input, ReduceOp op = ReduceOp::SUM,
                            Where where = Where::current()) const;

  /// Like reduce_scatter(), with one `input` of size() * output.numel() elements. In place: `output` is
  /// part rank() of `input`. PyTorch: `reduce_scatter_tensor`.
  void reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::SUM,
                             Where where = Where::current()) const;
  /// reduce_scatter_tensor() without waiting. PyTorch: `reduce_scatter_tensor(async_op=True)`.
  Work reduce_scatter_tensor_async(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::SUM,
                                   Where where = Where::current()) const;

  /// output[i] becomes input[rank()] of rank i and must have its shape. Shapes may differ between pairs of
  /// ranks. In place: output[rank()] is input[rank()], and no other. PyTorch: `all_to_all`.
  void all_to_all(const Tensors& output, const Tensors& input, Where where = Where::current()) const;
  /// all_to_all() without waiting. PyTorch: `all_to_all(async_op=True)`.
  Work all_to_all_async(const Tensors& output, const Tensors& input, Where where = Where::current()) const;

  /// Like all_to_all(), with one tensor that is split along dimension 0: into size() equal parts, or into the
  /// given numbers of rows, one per rank, whose sum is the first dimension. PyTorch: `all_to_all_single`.
  void all_to_all_single(const Tensor& output, const Tensor& input,
                         const std::vector<std::int64_t>& output_split_sizes = {},
                         const std::vector<std::int64_t>& input_split_sizes = {},
                         Where where = Where::current()) const;
  /// all_to_all_single() without waiting. PyTorch: `all_to_all_single(async_op=True)`.
  Work all_to_all_single_async(const Tensor& output, const Tensor& input,
                               const std::vector<std::int64_t>& output_split_sizes = {},
                               const std::vector<std::int64_t>& input_split_sizes = {},
                               Where where = Where::current()) const;

  /// Sends to one other rank, which receives with the same `tag` (0 or more), shape and dtype. With gloo it
  /// may block until then. PyTorch: `send`.
  void send(const Tensor& tensor, int dst, int tag = 0, Where where = Where::current()) const;
  /// send() without waiting. PyTorch: `isend`.
  Work send_async(const Tensor& tensor, int dst, int tag = 0, Where where = Where::current()) const;

  /// Receives from rank `src`, or from any rank when `src` is nullopt. Returns the sending rank. PyTorch:
  /// `recv`.
  int recv(const Tensor& tensor, std::optional<int> src = std::nullopt, int tag = 0,
           Where where = Where::current()) const;
  /// recv() without waiting. PyTorch: `irecv`.
  Work recv_async(const Tensor& tensor, std::optional<int> src = std::nullopt, int tag = 0,
                  Where where = Where::current()) const;

  /// Returns when every rank has called it. PyTorch: `barrier`.
  void barrier(Where where = Where::current()) const;
  /// barrier() without waiting. PyTorch: `barrier(async_op=True)`.
  Work barrier_async(Where where = Where::current()) const;
  /// A barrier with its own timeout (default: the group's) that names a missing rank. With `wait_all_ranks`
  /// it names all missing ranks, also with gloo, which otherwise stops at the first. PyTorch:
  /// `monitored_barrier`.
  void monitored_barrier(std::optional<Timeout> timeout = std::nullopt, bool wait_all_ranks = false,
                         Where where = Where::current()) const;

  /// Gathers strings or bytes, whose lengths may differ between ranks: [i] is the object of rank i. The
  /// `_async` forms of these four calls return an ObjectWork, whose wait() is collective. PyTorch:
  /// `all_gather_object`.
  std::vector<std::string> all_gather_object(const std::string& object, Where where = Where::current()) const;
  /// all_gather_object() without waiting.
  ObjectWork<std::vector<std::string>> all_gather_object_async(const std::string& object,
                                                               Where where = Where::current()) const;
  /// Returns `object` of rank `src`. PyTorch: `broadcast_object_list`.
  std::string broadcast_object(const std::string& object, int src, Where where = Where::current()) const;
  /// broadcast_object() without waiting.
  ObjectWork<std::string> broadcast_object_async(const std::string& object, int src,
                                                 Where where = Where::current()) const;
  /// On rank `dst`, [i] is the object of rank i. On other ranks the result is empty. PyTorch:
  /// `gather_object`.
  std::vector<std::string> gather_object(const std::string& object, int dst,
                                         Where where = Where::current()) const;
  /// gather_object() without waiting.
  ObjectWork<std::vector<std::string>> gather_object_async(const std::string& object, int dst,
                                                           Where where = Where::current()) const;
  /// Returns objects[rank()] of rank `src`, which passes size() objects. On other ranks `objects` is empty.
  /// PyTorch: `scatter_object_list`.
  std::string scatter_object(const std::vector<std::string>& objects, int src,
                             Where where = Where::current()) const;
  /// scatter_object() without waiting.
  ObjectWork<std::string> scatter_object_async(const std::vector<std::string>& objects, int src,
                                               Where where = Where::current()) const;

 private:
  friend class comm::GroupState;
  friend struct comm::NonMember;

  // A group that this rank is not in.
  explicit ProcessGroup(std::shared_ptr<comm::NonMember> outside);

  std::shared_ptr<comm::GroupState> state_;      // nullptr on a rank outside of the group
  std::shared_ptr<comm::NonMember> non_member_;  // and this on a member
};

}  // namespace lockstep
