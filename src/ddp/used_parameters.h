// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// Which parameters have had a gradient since the last reduction: on this rank, and then on any rank. PyTorch:
// the reducer's `local_used_map`.
class UsedParameters {
 public:
  UsedParameters(std::size_t parameters, c10::Device device);

  void mark(std::size_t parameter) { here_.data_ptr<std::int32_t>()[parameter] = 1; }
  // A collective call; used_anywhere() returns its result.
  void reduce(const ProcessGroup& group, std::source_location where);
  // Waits for the reduction if this rank did not use the parameter.
  bool used_anywhere(std::size_t parameter);
  // Waits for the reduction and starts over.
  void clear();

 private:
  void wait();

  at::Tensor here_;  // int32, on the CPU
  at::Tensor sent_;  // on the parameters' device
  Work work_;
  bool waited_ = true;
};

}  // namespace lockstep::ddp
