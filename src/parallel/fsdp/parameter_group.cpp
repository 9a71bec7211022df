// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/parameter_group.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "base/throw_error.h"
#include "fsdp/tree.h"
#include "modules/agreement.h"

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

// The gradient of a parameter whose gradients are in its shard.
class NoGradient final : public intercept::MemoryGuard {
 public:
  explicit NoGradient(const std::shared_ptr<ParameterGroup>& group) : group_(group) {}

  Views before_use(std::string_view op, bool /*writes*/) override {
    if (op == "aten::zero_") {
      if (const auto group = group_.lock()) group->fill_gradients_with_zeros();
    } else if (op != "aten::detach") {  // both are what the module's zero_grad() calls
      const auto group = group_.lock();
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
    if (const auto group = group_.lock()) group->before_gradient();
    return gradients;
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
};

class GradientReady final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientReady(ParameterGroup& group, std::size_t index) : group_(group.weak_from_this()), index_(index) {}
  void operator()(const at::Tensor& /*parameter*/) override {
    if (const auto group = group_.lock()) group->on_gradient_ready(index_);
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
  std::size_t index_;
};

}  // namespace

std::shared_ptr<ParameterGroup> ParameterGroup::create(const std::vector<modules::NamedTensor>& parameters,
                                                       GroupOptions options, std::shared_ptr<Tree> tree) {
  auto group = std::make_shared<ParameterGroup>(std::move(options), std::move(tree));
  for (const auto& parameter : parameters) group->add(parameter);
  group->no_gradient_ = at::empty({0});
  intercept::set_guard(group->no_gradient_, std::make_unique<NoGradient>(group));
  return group;
}

void ParameterGroup::distribute() {
  if (parameters_.front().lock_whole().is_meta()) {
    memory_ = defer_parameters(parameters_, shared_from_this(), options_);
  } else {
    place();
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

void ParameterGroup::place() {
  const auto place = is_shared() ? share_parameters : gather_parameters;
  memory_ = place(parameters_, shared_from_this(), options_);
  empty_cpu_cache();  // the whole parameters were larger than anything that this rank allocates later
  for (auto& parameter : parameters_) {
    parameter.shard.unsafeGetTensorImpl()->set_version_counter(version_);
    parameter.lock_whole().mutable_grad().reset();  // gradients of before, as in PyTorch
  }
  is_whole_ = is_shared();
  set_gradient_dtypes();
  watch_gradients();
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
  place();
}

ParameterGroup::ParameterGroup(GroupOptions options, std::shared_ptr<Tree> tree)
    : options_(std::move(options)), tree_(std::move(tree)), version_(0) {}

ParameterGroup::~ParameterGroup() {
  const std::lock_guard lock(tree_->mutex);
  tree_->forget(*this);
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
  if (parameter.trained) ++trained_;
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
  throw_error<ArgumentError>("{}:{}: fully_shard(): parameter {} {}", options_.where.file_name(),
                             options_.where.line(), name, what);
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

void ParameterGroup::watch_gradients() {
  is_ready_.assign(parameters_.size(), false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto whole = parameters_[i].lock_whole();
    torch::autograd::impl::add_hook(whole, std::make_unique<BeforeGradient>(*this));
    torch::autograd::impl::set_post_acc_grad_hooks(whole, std::make_unique<GradientReady>(*this, i));
  }
}

std::string ParameterGroup::describe() const {
  return fmt::format("the group of {} of fully_shard() in {}:{}", parameters_.front().name,
                     options_.where.file_name(), options_.where.line());
}

intercept::MemoryGuard::Views ParameterGroup::before_use(std::string_view op, bool writes) {
  if (writes && op != "aten::requires_grad_") {
    throw_error<ArgumentError>(
        "{} writes to a parameter in {}; optimizers and other code that changes parameters get the "
        "parameters() of the FSDPModule that it returned",
        op, describe());
  }
  if (op == "aten::_has_compatible_shallow_copy_type")
    return intercept::MemoryGuard::Views::guarded;  // set_data()
  const intercept::WithoutGuards here;
  const std::lock_guard lock(tree_->mutex);
  if (tree_->is_in_forward() && !is_copy(op)) tree_->begin_forward(*this);
  if (tree_->is_in_forward())
    for (const auto& policy : forward_policies) policy->check();
  try {
    tree_->use(*this);
  } catch (const DesyncError& error) {
    if (!is_copy(op)) throw;
    throw_error<DesyncError>(
        "{} of a parameter in {} gathers it, so all ranks have to call it together. To convert or move the "
        "module, do so before fully_shard(). {}",
        op, describe(), error.what());
  }
  if (is_recurrent(op)) stays_whole = true;
  return is_shared() || stays_whole ? intercept::MemoryGuard::Views::plain
                                    : intercept::MemoryGuard::Views::guarded;
}

void ParameterGroup::before_gradient() {
  const std::lock_guard lock(tree_->mutex);
  tree_->begin_backward();
}

void ParameterGroup::on_gradient_ready(std::size_t index) {
  const std::lock_guard lock(tree_->mutex);
  if (!is_ready_[index]) ++ready_;
  is_ready_[index] = true;
  if (requires_gradient_sync && ready_ == trained_) reduce();
}

bool ParameterGroup::is_current() const { return is_whole_ && has_last_values(); }

void ParameterGroup::prefetch() {
  find_hosts();
  if (prefetched_version_ != version_.current_version()) drop_prefetch();
  if (!has_last_values()) memory_->forget_part();
  prefetched_version_ = version_.current_version();
  tree_->run(shard_group(), [&] { memory_->prefetch(); });
}

// Only here does the tree have the groups of the whole module, which need one split for all.
void ParameterGroup::find_hosts() {
  if (options_.gathers_on_hosts) memory_->gather_on_hosts(tree_->host_split(shard_group()));
}

void ParameterGroup::make_whole() {
  find_hosts();
  if (prefetched_version_ != version_.current_version()) drop_prefetch();
  if (!has_last_values()) memory_->forget_part();
  memory_->check_values();
  tree_->run(shard_group(), [&] { memory_->make_whole(); });
  record_gathering();
  is_whole_ = is_valid_ = true;
  whole_version_ = version_.current_version();
}

bool ParameterGroup::make_current_in_shared_memory() {
  if (!is_shared()) return false;
  make_whole();
  return memory_->copies();
}

void ParameterGroup::drop_prefetch() {
  tree_->run(shard_group(), [&] { memory_->drop_prefetch(); });
  record_gathering();
}

void ParameterGroup::record_gathering() {
  const auto call = memory_->take_gathering();
  if (!call) return;
  traffic_.add_gather(*call);
  tree_->trace_call(tracing::StepTrace::Lane::gathers, "gather " + traced_name_, *call);
}

void ParameterGroup::release() {
  is_held = false;
  drop_prefetch();
  memory_->release();
  is_whole_ = is_shared();
}

void ParameterGroup::release_after_forward() {
  if (options_.ranks_after_forward > 0 && has_last_values())
    memory_->keep_part(tree_->split(shard_group(), options_.ranks_after_forward));
  release();
}

void ParameterGroup::forbid_access(const std::string& why) const {
  if (!is_shared()) return;
  for (const auto& parameter : parameters_)
    for (const auto& tensor : {parameter.lock_whole(), parameter.shard})
      if (tensor.defined()) intercept::forbid_access(tensor, why);
}

void ParameterGroup::invalidate() {
  is_valid_ = false;
  memory_->forget_part();
}

void ParameterGroup::set_reshard_after_forward(bool reshard) {
  options_.reshard_after_forward = reshard;
  options_.ranks_after_forward = 0;
}

void ParameterGroup::reshard() {
  const std::lock_guard lock(tree_->mutex);
  if (is_shared()) tree_->wait_for_ranks();
  release();
  invalidate();
}

bool ParameterGroup::can_release(bool in_backward) const {
  if (is_shared() || stays_whole) return false;
  if (in_backward) return reshard_after_backward;
  return options_.reshard_after_forward.value_or(tree_->outermost != this);
}

}  // namespace lockstep::fsdp
