// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/ddp/comm_hooks.h>

#include "comm/profiler_event.h"
#include "modules/named_tensors.h"

namespace lockstep::ddp {

// What the reduction of a bucket carries, in records.
inline constexpr const char* kGradients = "gradients of bucket";

using modules::distinct;
using modules::NamedTensor;

// A parameter whose gradients are reduced.
struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // whether its gradients are
};

// The parameters that require gradients; sparse if they are the weight of an embedding with sparse(true).
std::vector<TrainedParameter> trained_parameters(const torch::nn::Module& module,
                                                 const std::vector<modules::NamedTensor>& parameters);

// [b] = indices of the parameters in bucket b, in the order in which buckets are reduced.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// Size limits in bytes of the first, second, ... bucket; the last holds for the rest.
struct BucketLimits {
  std::vector<std::size_t> initial;
  std::vector<std::size_t> rebuilt;
};

// Before the order of gradients is known: parameters in their order, the bucket of the last ones first.
BucketPlan initial_plan(const std::vector<TrainedParameter>& parameters,
                        const std::vector<std::size_t>& limits);

// By the order in which gradients became ready.
BucketPlan plan_by_order(const std::vector<TrainedParameter>& parameters,
                         const std::vector<std::int64_t>& order, const std::vector<std::size_t>& limits);

// How a gradient is divided by the number of ranks on its way into a bucket, which decides on its bits.
enum class Division : std::uint8_t { none, by_number, by_reciprocal };

// The gradients of some parameters in one flat tensor, or the sparse gradient of one.
struct Bucket {
  struct Slot {
    std::size_t parameter = 0;
    std::int64_t offset = 0;  // in the flat tensor
    at::Tensor view = {};     // the flat tensor's memory in the parameter's shape; no autograd view
    Division division = Division::none;  // of the last gradient
  };

  bool sparse = false;
  std::int64_t numel = 0;
  std::int64_t bytes = 0;
  at::TensorOptions options = {};
  at::Tensor flat = {};  // undefined while it has no memory; if sparse, the gradient itself
  std::vector<Slot> slots = {};

  std::size_t pending = 0;  // gradients still missing in this backward
  bool skipped = false;     // in this backward, because no rank uses its parameters
  bool finished = false;    // its result has been written to the gradients, or discarded
  BucketWork work = {};
  std::chrono::steady_clock::time_point launched = {};
  comm::ProfilerEvent event = {};  // from its launch
};

// `dtype`: of floating-point gradients; default: the parameters' own.
std::vector<Bucket> make_buckets(const BucketPlan& plan, const std::vector<TrainedParameter>& parameters,
                                 std::optional<at::ScalarType> dtype);

// Gives a dense bucket zeroed memory, from the backend's allocateTensor() if it has one.
void allocate(Bucket& bucket, const std::vector<TrainedParameter>& parameters, const ProcessGroup& group);
void release(Bucket& bucket);
// The contribution of a rank that has no gradients.
at::Tensor zeros_of(const Bucket& bucket, const std::vector<TrainedParameter>& parameters,
                    const ProcessGroup& group);

// A tensor of like's shape on the flat tensor's memory that autograd does not treat as a view: zero_grad()
// detaches gradients in place, which a view forbids.
at::Tensor alias_of(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like);

// The sum of all ranks' sparse (COO) tensors of one shape, coalesced, added in rank order. PyTorch: Gloo's
// all_reduce of sparse tensors.
BucketWork sum_sparse(const at::Tensor& tensor, const ProcessGroup& group, std::source_location where);

}  // namespace lockstep::ddp
