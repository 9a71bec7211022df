// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/c10d.h>

#include "backends/shm/request.h"

// What a Request says, of tensors. All of these throw ArgumentError for what the backend does not carry.
namespace lockstep::shm {

// Of complex tensors that of their parts. None: not carried.
std::optional<Element> find_element(c10::ScalarType dtype);
Element element_of(c10::ScalarType dtype);

// The memory of dense tensors of the CPU, as it lies there.
Source source_of(const at::Tensor& tensor);
Target target_of(const at::Tensor& tensor);
std::vector<Source> sources_of(const std::vector<at::Tensor>& tensors);
std::vector<Target> targets_of(const std::vector<at::Tensor>& tensors);

// Each rank's part of a contiguous tensor: equal parts, or as many rows as `rows` says.
std::vector<Source> source_parts(const at::Tensor& tensor, int size,
                                 const std::vector<std::int64_t>& rows = {});
std::vector<Target> target_parts(const at::Tensor& tensor, int size,
                                 const std::vector<std::int64_t>& rows = {});

// Requests for calls on such tensors, still without inputs and outputs.
Request reducing(Kind kind, const at::Tensor& tensor, const c10d::ReduceOp& op);
Request copying(Kind kind, const at::Tensor& tensor, int root = 0);

}  // namespace lockstep::shm
