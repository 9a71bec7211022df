// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::bench {

// A call with its tensors.
struct Trial {
  std::function<void()> rewrite = [] {};       // before each call: writes this rank's input
  std::function<void()> run = [] {};           // the timed call
  std::function<void()> clear_output = [] {};  // before a checked call
  // After a call: number of wrong elements on this rank.
  std::function<std::int64_t()> wrong = [] { return std::int64_t{0}; };
};

struct TrialRequest {
  ProcessGroup group;
  std::int64_t count = 0;  // elements
  c10::ScalarType dtype = c10::ScalarType::Float;
  ReduceOp op = ReduceOp::SUM;
  bool zero_copy = false;  // tensors from the backend's allocateTensor()
};

// `collective`: a name of kinds().
Trial prepare(const std::string& collective, const TrialRequest& request);

// By the names of dtypes() and --op.
c10::ScalarType scalar_type(const std::string& name);
ReduceOp reduce_op(const std::string& name);

}  // namespace lockstep::bench
