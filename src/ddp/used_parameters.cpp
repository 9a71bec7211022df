// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/used_parameters.h"

#include <ATen/ops/zeros.h>

namespace lockstep::ddp {

UsedParameters::UsedParameters(std::size_t parameters, c10::Device device)
    : here_(at::zeros({static_cast<std::int64_t>(parameters)}, at::kInt)),
      sent_(at::zeros_like(here_, at::TensorOptions().device(device))) {}

void UsedParameters::reduce(const ProcessGroup& group, std::source_location where) {
  sent_.copy_(here_);
  work_ = group.all_reduce_async(sent_, ReduceOp::SUM, where);
  waited_ = false;
}

void UsedParameters::wait() {
  if (std::exchange(waited_, true)) return;
  work_.wait();
  here_.copy_(sent_);
}

bool UsedParameters::used_anywhere(std::size_t parameter) {
  if (here_.data_ptr<std::int32_t>()[parameter] == 0) wait();
  return here_.data_ptr<std::int32_t>()[parameter] != 0;
}

void UsedParameters::clear() {
  wait();
  here_.zero_();
}

}  // namespace lockstep::ddp
