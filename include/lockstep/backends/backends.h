// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/mutex.h>
#include <lockstep/comm/backend.h>

namespace lockstep {

/// Settings of the nccl backend. Other backends ignore them. A field without a value has NCCL's default.
/// PyTorch: `ProcessGroupNCCL.Options` and its `config`.
struct NcclOptions {
  /// Whether collectives run before other work that waits for the GPU. PyTorch: `is_high_priority_stream`.
  bool high_priority_stream = false;
  /// Whether wait() blocks the host until the device has finished the call. False: only the current stream
  /// waits, as in a step that is captured into a graph. Default: TORCH_NCCL_BLOCKING_WAIT, else false.
  std::optional<bool> blocking_wait = {};
  /// Whether communicators are created and destroyed without blocking the host. The opposite of NCCL's
  /// `blocking`.
  std::optional<bool> nonblocking = {};
  std::optional<int> min_ctas = {};          ///< minimum number of thread blocks of a collective
  std::optional<int> max_ctas = {};          ///< maximum; fewer leave more of the GPU to backward
  std::optional<int> cga_cluster_size = {};  ///< 0 to 8; from Hopper on
  std::string net_name = {};                 ///< network plugin, "IB" or "Socket"; empty: NCCL's choice
};

/// Whether this build has the backend: "gloo", "nccl", "mpi", "shm", ... PyTorch:
/// `torch.distributed.is_backend_available`.
bool is_backend_available(const std::string& backend);
/// Whether this build has the backend nccl. PyTorch: `torch.distributed.is_nccl_available`.
inline bool is_nccl_available() { return is_backend_available("nccl"); }
/// Whether this build has the backend gloo. PyTorch: `torch.distributed.is_gloo_available`.
inline bool is_gloo_available() { return is_backend_available("gloo"); }
/// Whether this build has the backend mpi. PyTorch: `torch.distributed.is_mpi_available`.
inline bool is_mpi_available() { return is_backend_available("mpi"); }

namespace backends {

/// A backend in one process that sends nothing and records every call, for tests.
/// PyTorch: `torch.testing._internal.distributed.fake_pg`.
///
/// It behaves as if every rank had this rank's data and reductions did not change it: all-reduce, reduce and
/// broadcast leave their tensor unchanged, gathers copy the input to every output, scatters take the part of
/// this rank. All calls complete immediately. Safe from any thread.
class FakeBackend : public c10d::Backend {
 public:
  /// A call that was made.
  struct Call {
    c10d::OpType op = c10d::OpType::UNKNOWN;  ///< the function
    std::int64_t numel = 0;                   ///< of the (first) tensor
    at::Tensor tensor;                        ///< the (first) tensor itself; undefined for a barrier
  };

  FakeBackend(int rank, int size) : Backend(rank, size) {}

  /// All calls since the last clear_calls(), in order.
  std::vector<Call> calls() const;
  /// Forgets the calls.
  void clear_calls();
  /// Records the next call and makes its wait() throw `failure`.
  void fail_next_call(std::exception_ptr failure);

  /// The properties that its registration names.
  static BackendTraits traits();

  const std::string getBackendName() const override { return "fake"; }

  /// A list of tensors.
  using Tensors = std::vector<at::Tensor>;
  /// A pending call of c10d.
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  WorkPtr record(c10d::OpType op, const at::Tensor& tensor);

  mutable Mutex mutex_;
  std::vector<Call> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr next_failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace backends
}  // namespace lockstep
