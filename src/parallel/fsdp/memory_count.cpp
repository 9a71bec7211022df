// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/memory_count.h"

#include "fsdp/parameter_group.h"

namespace lockstep::fsdp {

void ParameterGroup::count_memory(MemoryCount& count) const {
  const auto sharing = memory_->sharing();
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    const auto memory = is_shared() ? memory_of(parameter) : at::Tensor();
    if (memory.defined()) {
      const auto bytes = static_cast<std::int64_t>(memory.nbytes());
      count.shared += bytes / sharing.ranks;
      if (sharing.counts) count.owned += bytes;
    } else if (sharing.ranks > 1) {
      const auto gathered = memory_of(parameter);
      if (gathered.defined())
        count.gathered_on_host += static_cast<std::int64_t>(gathered.nbytes()) / sharing.ranks;
    }
    if (!memory.defined() || !memory.is_alias_of(parameter.shard)) count.parameters.add(parameter.shard);
    count.gradients.add(parameter.shard.grad());
    if (whole.defined()) count.gradients.add(whole.grad());
  }
  for (const auto& tensor : memory_->gathered()) count.gathered.add(tensor);
  if (reduction_) {
    count.gradients.add(reduction_->input);
    count.gradients.add(reduction_->output);
  }
  if (partial_) count.gradients.add(partial_->sum);
}

}  // namespace lockstep::fsdp
