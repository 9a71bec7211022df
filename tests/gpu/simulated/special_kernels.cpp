// SPDX-License-Identifier: BSD-3-Clause
#include "special_kernels.h"

#include <ATen/DeviceGuard.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>

#include "operator_call.h"
#include "simulated.h"

namespace lockstep::simulated {
namespace {

bool is_plain(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense();
}

// Between host and device LibTorch's own way leads to the runtime's copies. So it does between devices, for
// what lies alike on both; for the rest it would use a kernel.
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!to.is_cuda() || !from.is_cuda()) return at::native::copy_(to, from, non_blocking);
  if (to.device() != from.device()) {
    if (is_plain(to, from)) return at::native::copy_(to, from, non_blocking);
    at::Tensor there =
        at::empty_like(from, from.options().device(to.device()).memory_format(at::MemoryFormat::Contiguous));
    const auto dense = from.contiguous();
    at::native::copy_(there, dense, non_blocking);
    return to.copy_(there);
  }
  const at::DisableRecordFunctionGuard unobserved;
  const c10::OptionalDeviceGuard guard(to.device());
  const auto target = ref_to(to), source = ref_to(from);
  C10_CUDA_CHECK(lockstep_simulated_launch(at::cuda::getCurrentCUDAStream(), [target, source] {
    at::set_num_threads(1);
    on_cpu(target).copy_(on_cpu(source));
  }));
  return to;
}

std::int64_t choose_math(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

// Sparse tensors: what gradients of an embedding need.
at::Tensor coalesce(const at::Tensor& self) {
  const auto made =
      at::sparse_coo_tensor(self._indices().cpu(), self._values().cpu(), self.sizes(), at::kCPU).coalesce();
  return at::sparse_coo_tensor(made.indices().to(self.device()), made.values().to(self.device()),
                               self.sizes())
      ._coalesced_(true);
}

at::Tensor& add_to_dense(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(!self.is_sparse() && other.is_sparse() && other.sparse_dim() == 1,
              "simulated GPU: this sum of sparse tensors is not simulated");
  return self.index_add_(0, other._indices()[0], other._values(), alpha);
}

}  // namespace

void add_special_kernels() {
  static torch::Library dense(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  dense.impl("aten::copy_", copy_);
  dense.impl("aten::_fused_sdp_choice", choose_math);
  static torch::Library sparse(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__,
                               __LINE__);
  sparse.impl("aten::_coalesce", coalesce);
  sparse.impl("aten::add_.Tensor", add_to_dense);
}

}  // namespace lockstep::simulated
