// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/parameter_group.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "fsdp/tree.h"
#include "modules/agreement.h"
#include "modules/rank_part.h"
#include "runtime/run.h"

namespace lockstep::fsdp {
namespace {

using torch::autograd::variable_list;

// LSTM and its relatives choose slower kernels for tensors with additional keys.
bool is_recurrent(std::string_view op) {
  return op == "aten::lstm" || op == "aten::gru" || op == "aten::rnn_tanh" || op == "aten::rnn_relu";
}

// What a module's to() and clone() call, after which the module may be another one.
bool is_copy(std::string_view op) {
  return op == "aten::to" || op == "aten::_to_copy" || op == "aten::clone" || op == "aten::detach";
}

// Owned by the storage of a module's parameter.
class ParameterGuard final : public intercept::MemoryGuard, public modules::RankPart {
 public:
  explicit ParameterGuard(std::shared_ptr<ParameterGroup> group) : group_(std::move(group)) {}

  Views before_use(std::string_view op, bool writes) override {
    if (writes && op != "aten::requires_grad_") {
      throw_error<ArgumentError>(
          "{} writes to a parameter in {}; optimizers and other code that changes parameters get the "
          "parameters() of the FSDPModule that it returned",
          op, group_->describe());
    }
    if (op == "aten::_has_compatible_shallow_copy_type") return Views::guarded;  // set_data()
    try {
      return group_->tree()->use(*group_, {.is_forward = !is_copy(op), .has_plain_views = is_recurrent(op)});
    } catch (const DesyncError& error) {
      if (!is_copy(op)) throw;
      throw_error<DesyncError>(
          error.details(),
          "{} of a parameter in {} gathers it, so all ranks have to call it together. To convert or move the "
          "module, do so before fully_shard(). {}",
          op, group_->describe(), error.what());
    }
  }
  const std::shared_ptr<ParameterGroup>& group() const { return group_; }

  at::Tensor part_of(const at::Tensor& parameter) const override {
    const auto& all = group_->parameters();
    const auto found =
        std::ranges::find_if(all, [&](const auto& each) { return each.lock_whole().is_same(parameter); });
    return found == all.end() ? at::Tensor() : found->shard;
  }
  modules::RankPartOwner& owner() const override { return *group_->tree(); }

 private:
  std::shared_ptr<ParameterGroup> group_;
};

// The gradient of a parameter whose gradients are in its shard.
class NoGradient final : public intercept::MemoryGuard {
 public:
  explicit NoGradient(std::weak_ptr<ParameterGroup> group) : group_(std::move(group)) {}

  Views before_use(std::string_view op, bool /*writes*/) override {
    const auto group = group_.lock();
    if (op == "aten::zero_") {
      if (group) group->tree()->locked([&](StepCalls&) { group->gradients().fill_with_zeros(); });
    } else if (op != "aten::detach") {  // both are what the module's zero_grad() calls
      throw_error<ArgumentError>(
          "{}: after backward, the module's parameters in {} have no gradients; give optimizers the "
          "parameters() of the FSDPModule that it returned, and clip its gradients with "
          "lockstep::clip_grad_norm_()",
          op, group ? group->describe() : "a group of fully_shard()");
    }
    return Views::guarded;
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
};

class BeforeGradient final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeGradient(ParameterGroup& group) : group_(group.weak_from_this()) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto group = group_.lock()) group->tree()->before_gradient();
    return gradients;
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
};

class GradientReady final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientReady(ParameterGroup& group, std::size_t index) : group_(group.weak_from_this()), index_(index) {}
  void operator()(const at::Tensor& /*parameter*/) override {
    if (const auto group = group_.lock()) group->tree()->on_gradient_ready(*group, index_);
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
  std::size_t index_;
};

}  // namespace

void ForwardPolicy::check() const {
  if (is_used || !mp_policy.output_dtype) return;
  throw_error<Error>(
      "{}: the module has an output_dtype, which only forward() of the FSDPModule converts to; call "
      "sharded.forward(net, ...) instead of net->forward(...), or convert the output in the module's code",
      describe);
}

std::shared_ptr<ParameterGroup> group_of(const at::Tensor& parameter) {
  auto* const guard = dynamic_cast<ParameterGuard*>(intercept::memory_guard_of(parameter));
  return guard == nullptr ? nullptr : guard->group();
}

std::shared_ptr<ParameterGroup> ParameterGroup::create(const std::vector<modules::NamedTensor>& parameters,
                                                       GroupOptions options, std::shared_ptr<Tree> tree) {
  auto group = std::make_shared<ParameterGroup>(std::move(options), std::move(tree));
  for (const auto& parameter : parameters) group->add(parameter);
  intercept::set_guard(group->gradients_.placeholder(), std::make_unique<NoGradient>(group));
  return group;
}

ParameterGroup::ParameterGroup(GroupOptions options, std::shared_ptr<Tree> tree)
    : options_(std::move(options)),
      tree_(std::move(tree)),
      gather_(parameters_, options_, traffic_),
      gradients_(parameters_, options_, traffic_) {}

void ParameterGroup::distribute() {
  gather_.place([this] { return std::make_unique<ParameterGuard>(shared_from_this()); });
  if (gather_.is_deferred()) return;
  gradients_.zero();  // those of before, as in PyTorch
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto whole = parameters_[i].lock_whole();
    torch::autograd::impl::add_hook(whole, std::make_unique<BeforeGradient>(*this));
    torch::autograd::impl::set_post_acc_grad_hooks(whole, std::make_unique<GradientReady>(*this, i));
  }
}

std::string ParameterGroup::text() const {
  std::string lines;
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    lines += fmt::format("{}, Shard({}){}\n", modules::describe("parameter", {parameter.name, whole}),
                         parameter.dim, parameter.trained ? "" : ", no gradient");
  }
  return lines;
}

void ParameterGroup::set_initial(const at::Tensor& tensor, const at::Tensor& whole) {
  const auto rank = shard_group().rank();
  for (auto& parameter : parameters_) {
    if (!parameter.lock_whole().is_same(tensor)) continue;
    parameter.initial = parameter.rows_in(whole, rank).clone();
  }
}

void ParameterGroup::to_empty(c10::Device device) {
  if (!is_deferred()) return;
  const auto self = shared_from_this();  // the guards that own it are replaced
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    set_type(whole, whole.options().device(device));
  }
  distribute();
}

bool ParameterGroup::can_release(UsePlan::Pass pass, bool is_outermost) const {
  if (is_shared() || stays_whole) return false;
  if (pass == UsePlan::backward) return reshard_after_backward;
  return options_.reshard_after_forward.value_or(!is_outermost);
}

void ParameterGroup::set_reshard_after_forward(bool reshard) {
  options_.reshard_after_forward = reshard;
  options_.ranks_after_forward = 0;
}

void ParameterGroup::reduce(GradientReduction::Reduction gradients, StepCalls& calls) {
  gradients_.pack(gradients);
  if (reshard_after_backward && !stays_whole) gather_.release(calls);
  gradients_.launch(std::move(gradients), calls);
}

void ParameterGroup::end_backward(StepCalls& calls) {
  stays_whole = false;
  gather_.drop_prefetch(calls);  // the optimizer changes the shards next
  if (reshard_after_backward) gather_.release(calls);
  gather_.invalidate();
  gradients_.end_backward();
}

void ParameterGroup::require_can_rejoin() const {
  const auto* const run = runtime::current_run();
  const bool is_default =
      run != nullptr && &comm::state_of(run->group()) == &comm::state_of(options_.shard_group);
  const char* why = nullptr;
  if (options_.share_memory || options_.gathers_on_hosts) {
    why = "the ranks share its memory, also that of a lost rank; give fully_shard() share_memory = false";
  } else if (options_.replicas || !is_default) {
    why = "its ranks are those of a mesh, not the default group; leave out the mesh";
  } else if (options_.ranks_after_forward > 0) {
    why = "reshard_after_forward is a number, which makes further groups; give true or false";
  } else if (is_deferred()) {
    why = "it is on device meta; call lockstep::to_empty() before";
  }
  if (why == nullptr) return;
  throw_error<ArgumentError>("{}{} of fully_shard() cannot be part of an elastic run yet: {}",
                             line_prefix(options_.where), parameters_.front().name, why);
}

void ParameterGroup::keep_settings() {
  kept_settings_ = Settings{.reshard_after_forward = options_.reshard_after_forward,
                            .ranks_after_forward = options_.ranks_after_forward,
                            .reshard_after_backward = reshard_after_backward,
                            .prefetch = prefetch,
                            .requires_sync = gradients_.requires_sync(),
                            .requires_all_reduce = gradients_.requires_all_reduce,
                            .divide_factor = gradients_.divide_factor};
}

void ParameterGroup::rejoin(StepCalls& calls) {
  stays_whole = false;
  traffic_ = {};
  gather_.forget_step(calls);
  gradients_.forget_step();
  if (!kept_settings_) return;
  options_.reshard_after_forward = kept_settings_->reshard_after_forward;
  options_.ranks_after_forward = kept_settings_->ranks_after_forward;
  reshard_after_backward = kept_settings_->reshard_after_backward;
  prefetch = kept_settings_->prefetch;
  gradients_.set_requires_sync(kept_settings_->requires_sync);
  gradients_.requires_all_reduce = kept_settings_->requires_all_reduce;
  gradients_.divide_factor = kept_settings_->divide_factor;
}

void ParameterGroup::follow_training() {
  for (auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined()) continue;
    parameter.trained = whole.requires_grad();
    parameter.shard.set_requires_grad(parameter.trained);
  }
}

void ParameterGroup::add(const modules::NamedTensor& named) {
  check(named);
  const auto& [name, tensor] = named;
  const auto ranks = options_.shard_group.size();
  const auto dim = shard_dim(named);
  const auto size = tensor.size(dim);
  ShardedParameter parameter{.name = name,
                             .full_sizes = tensor.sizes().vec(),
                             .cuts = {},
                             .sizes = tensor.sizes().vec(),
                             .trained = tensor.requires_grad(),
                             .dim = dim,
                             .row = size == 0 ? 0 : tensor.numel() / size,
                             .chunk = (size + ranks - 1) / ranks,
                             .whole = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())};
  if (!parameters_.empty())
    parameter.offset = parameters_.back().offset + parameters_.back().padded_shard_numel();
  if (const auto* const part = modules::cut_parameter(tensor)) {
    parameter.full_sizes = part->sizes();
    if (part->cut()) parameter.cuts.push_back(*part->cut());
  }
  const auto rank = options_.shard_group.rank();
  parameter.cuts.push_back({options_.shard_group, dim, parameter.first_row(rank), parameter.chunk});
  parameters_.push_back(std::move(parameter));
}

std::int64_t ParameterGroup::shard_dim(const modules::NamedTensor& named) const {
  const auto& [name, tensor] = named;
  const auto placement = options_.shard_placement_fn ? options_.shard_placement_fn(tensor) : std::nullopt;
  if (!placement) return 0;
  if (placement->kind() != tensor::Placement::Kind::shard)
    refuse(name, "gets a placement from shard_placement_fn that is not Shard()");
  const auto dim = placement->dim() < 0 ? placement->dim() + tensor.dim() : placement->dim();
  if (dim < 0 || dim >= tensor.dim()) {
    refuse(name, fmt::format("has {} dimensions, but shard_placement_fn returns Shard({})", tensor.dim(),
                             placement->dim()));
  }
  const auto ranks = options_.shard_group.size();
  if (dim > 0 && tensor.size(dim) % ranks != 0) {
    refuse(name, fmt::format("has {} elements in dimension {}, which is no multiple of the {} ranks; return "
                             "nullopt for it from shard_placement_fn",
                             tensor.size(dim), dim, ranks));
  }
  return dim;
}

void ParameterGroup::refuse(const std::string& name, const std::string& what) const {
  throw_error<ArgumentError>("{}: parameter {} {}", call_text(options_.where), name, what);
}

void ParameterGroup::check(const modules::NamedTensor& named) const {
  const auto& [name, tensor] = named;
  if (tensor.layout() != at::kStrided)
    refuse(name, "is sparse, which cannot be sharded; add it to ignored_params");
  if (tensor.dim() == 0) refuse(name, "is a scalar, which cannot be sharded; give it the shape [1]");
  if (!tensor.is_contiguous()) refuse(name, "is not contiguous; call contiguous() on it before");
  if (!tensor.is_leaf()) refuse(name, "is not a leaf of autograd");
  if (parameters_.empty()) return;
  const auto first = parameters_.front().lock_whole();
  if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
    refuse(name,
           "has another dtype or device than " + parameters_.front().name +
               " of the same group; call fully_shard() on its module before, or add it to ignored_params");
  }
}

}  // namespace lockstep::fsdp
