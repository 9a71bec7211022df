// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/call_rules.h"
#include "comm/membership.h"
#include "device/libtorch_versions.h"

namespace lockstep::comm {

class CallRecorder;
class OperationFutures;

// Makes a c10d::Backend of a CallBackend, for callers that use c10d: one Call for each of its virtual
// functions, checked here, and recorded where record_calls() says so. See Note [One call path]. A derived class implements start().
//
// Its works have futures (`Work::getFuture`). The first future of a backend starts a thread that completes
// the futures; without one there is no thread.
class FromC10d : public libtorch::Backend, public CallBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  FromC10d(int rank, int size, const std::string& name, BackendTraits traits,
           std::chrono::milliseconds timeout);

  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  // Ends this rank's calls, as the destructor does: they throw kLeft, or an error of the network. Those of
  // other ranks go on unless they need this rank.
  virtual void leave() { abort(); }

  // Not here: see ReconfigurableBackend.
  bool supportsReconfigure() const override { return false; }
  std::string get_reconfigure_handle() const override;
  WorkPtr reconfigure(const libtorch::ReconfigureOptions& options) override;

  // For a group that has no GroupState, which records calls: other processes see what this rank does. nullptr: they
  // do not. Call it before the first call.
  void record_calls(const std::shared_ptr<node::NodeGroup>& group);

  // A group that some ranks of this one make of themselves.
  struct Part {
    c10::intrusive_ptr<c10d::Store> store;  // of the part
    std::vector<int> ranks;                 // their numbers in this group
    int rank = 0;                           // of this rank in the part
    std::string name;
    std::chrono::milliseconds timeout;
  };
  using Split = std::function<c10::intrusive_ptr<c10d::Backend>(const Part&)>;
  // Makes it possible to split the group. Call it before the first call.
  void set_split(Split split) { split_ = std::move(split); }
  bool supportsSplitting() const override { return split_ != nullptr; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  // nullptr on a rank outside of `ranks`. Only the name and the timeout of the options count: PyTorch passes
  // those of another device's backend.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) final;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) final;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) final;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) final;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) final;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) final;
  // outputs[rank][i] is input i of that rank.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) final;
  // outputs[i] joins input i of all ranks.
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) final;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) final;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) final;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) final;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) final;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) final;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) final;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) final;
  WorkPtr send(Tensors& tensors, int dst, int tag) final;
  WorkPtr recv(Tensors& tensors, int src, int tag) final;
  WorkPtr recvAnysource(Tensors& tensors, int tag) final;
  WorkPtr barrier(const c10d::BarrierOptions& options) final;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) final;

  // Collectives made through c10d are counted from 0 on every rank.
  void setSequenceNumberForGroup() final {}
  std::uint64_t getSequenceNumberForGroup() final { return sequence_number_.load(); }

 protected:
  // The group has other members from now on: numbers its calls from 0. Not during a call. From LibTorch 2.14
  // on.
  void change_members(int rank, int size, const BackendHandle& group);
  // A work that is complete.
  WorkPtr finished_work();
  std::chrono::milliseconds timeout() const { return timeout_.load(); }
  // The timeout of a call: its own if set, otherwise the backend's.
  std::chrono::milliseconds limit_of(const Call& call) const {
    return call.timeout == kNoTimeout ? timeout_.load() : call.timeout;
  }

 private:
  OperationPtr begin(const Call& call);
  OperationPtr recorded(const Call& call, c10::function_ref<OperationPtr()> start);
  WorkPtr work_of(c10d::OpType op, OperationPtr operation, Tensors outputs, const Call& call);
  WorkPtr run(c10d::OpType op, const Call& call);
  WorkPtr run(c10d::OpType op, const Call& call, Tensors outputs, std::function<void()> finish);
  // The same call for each pair of tensors.
  WorkPtr run_each(c10d::OpType op, Call call, const Tensors& outputs, const Tensors& inputs);
  WorkPtr allreduce_of_sparse(at::Tensor tensor, const c10d::AllreduceOptions& options);

  CallRules rules_;
  Split split_;
  bool records_ = false;
  std::shared_ptr<CallRecorder> recorder_;  // nullptr if the calls are not recorded
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_number_{0};
  std::shared_ptr<OperationFutures> futures_;
};

}  // namespace lockstep::comm
