// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "fsdp/parameter_memory.h"
#include "optim/parameter_rows.h"

namespace lockstep::fsdp {
namespace {

class DeferredMemory final : public ParameterMemory {
 public:
  DeferredMemory(std::vector<ShardedParameter>& parameters, const std::shared_ptr<ParameterGroup>& owner,
                 const GroupOptions& options)
      : first_(parameters.front().name) {
    const auto rank = options.shard_group.rank();
    for (auto& parameter : parameters) {
      const auto whole = parameter.lock_whole();
      parameter.shard = at::empty(parameter.shard_sizes(rank), whole.options().requires_grad(false));
      optim::note_rows(parameter.shard,
                       {parameter.full_sizes, modules::offsets_of(parameter.cuts, parameter.sizes.size())});
      parameter.shard.requires_grad_(parameter.trained);
      intercept::set_guard(whole, std::make_unique<ParameterGuard>(owner));
    }
  }

  void prefetch() override {}
  void drop_prefetch() override {}
  void check_values() const override {
    throw_error<ArgumentError>(
        "{} of fully_shard() is on device meta and has no values; call lockstep::to_empty() on the module, "
        "and load a checkpoint or give it a param_init_fn",
        first_);
  }
  void make_whole() override { check_values(); }
  void release() override {}
  void keep_part(const ProcessGroup& /*ranks*/) override {}
  void forget_part() override {}
  std::vector<at::Tensor> gathered() const override { return {}; }
  void gather_on_hosts(std::shared_ptr<const HostSplit> /*hosts*/) override {}

 private:
  std::string first_;
};

}  // namespace

std::unique_ptr<ParameterMemory> defer_parameters(std::vector<ShardedParameter>& parameters,
                                                  const std::shared_ptr<ParameterGroup>& owner,
                                                  const GroupOptions& options) {
  return std::make_unique<DeferredMemory>(parameters, owner, options);
}

}  // namespace lockstep::fsdp
