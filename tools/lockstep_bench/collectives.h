// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::bench {

/// Tensors and the call that is timed with them.
struct Trial {
  std::function<void()> rewrite = [] {};  ///< before each call: this rank's input
  std::function<void()> run = [] {};      ///< the call
  std::function<void()> spoil = [] {};    ///< before a call that is checked: what is output only
  /// After it: elements on this rank that are not what they must be.
  std::function<std::int64_t()> wrong = [] { return std::int64_t{0}; };
};

struct TrialRequest {
  ProcessGroup group;
  std::int64_t count = 0;  ///< elements of the size that the row stands for
  c10::ScalarType dtype = c10::ScalarType::Float;
  ReduceOp op = ReduceOp::SUM;
  bool inplace = false;  ///< tensors from the backend's allocateTensor()
};

/// `collective` as kinds() has it.
Trial prepare(const std::string& collective, const TrialRequest& request);

/// The names of dtypes() and of --op.
c10::ScalarType scalar_type(const std::string& name);
ReduceOp reduce_op(const std::string& name);

}  // namespace lockstep::bench
