// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "ddp/zero_shared_parameters.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "modules/change_agreement.h"
#include "optim/optimizer_kind.h"
#include "optim/optimizer_states.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep::ddp {
namespace {

using torch::optim::Optimizer;

constexpr const char* kReplaced = "has been replaced by another tensor";

// While it lives, the parameters have no gradients, so that an optimizer passes over them.
class HiddenGradients {
 public:
  explicit HiddenGradients(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (auto& parameter : parameters_)
      gradients_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  }
  ~HiddenGradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].mutable_grad() = std::move(gradients_[i]);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace

std::string zero_place(std::source_location where) {
  const auto line = line_text(where);
  return line.empty() ? "ZeroRedundancyOptimizer" : "ZeroRedundancyOptimizer at " + line;
}

ZeroStart::ZeroStart(const std::optional<ProcessGroup>& process_group, std::source_location from)
    : group([&] {
        const CallerPlace place(from);
        return runtime::required_group(process_group, "ZeroRedundancyOptimizer");
      }()),
      where(from) {}

void ZeroStart::tell(const std::exception& reason) const {
  if (!has_compared) modules::tell_failure({group}, "ZeroRedundancyOptimizer", reason, where);
}

ZeroShards::ZeroShards(Optimizer& optimizer, ZeroStart& start)
    : optimizer_(optimizer), group_(start.group), where_(start.where) {
  comm::refuse_with_python(comm::state_of(group_), "ZeroRedundancyOptimizer", "use the optimizer itself");
  const auto lines = parameters_text(where_);
  start.has_compared = true;
  compare_parameters(lines, where_);
  note_parameters();
  agreement_ = std::make_unique<modules::ChangeAgreement>(group_);
}

ZeroShards::~ZeroShards() = default;

void ZeroShards::compare_parameters(const std::string& lines, Where where) const {
  modules::check_same_on_all_ranks(
      group_,
      {.user = zero_place(where),
       .lines = lines,
       .advice = "Build the optimizer from the same parameters in the same order on all ranks"},
      where);
  std::vector<modules::NamedTensor> sent;
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& parameter : group.params())
      sent.push_back({.name = fmt::format("parameter {}", sent.size()), .tensor = parameter});
  }
  modules::check_can_be_sent(group_, "ZeroRedundancyOptimizer", sent);
}

// Throws ArgumentError for a parameter that an optimizer must not own.
std::string ZeroShards::parameters_text(Where where) const {
  const auto place = zero_place(where);
  std::string lines;
  std::size_t number = 0;
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    for (const auto& parameter : optimizer_.param_groups()[g].params()) {
      if (!parameter.is_leaf() || parameter.layout() != at::kStrided) {
        throw_error<ArgumentError>(
            "{}: parameter {} of group {}, of shape [{}], is {}; pass the parameters of the module "
            "themselves",
            place, number, g, fmt::join(parameter.sizes(), ", "),
            parameter.is_leaf() ? "not dense" : "computed from others");
      }
      if (optim::rows_of(parameter) != nullptr) {
        throw_error<ArgumentError>(
            "{}: parameter {} of group {} is one of fully_shard(), which divides the states; use the "
            "optimizer itself",
            place, number, g);
      }
      lines += modules::describe(fmt::format("parameter of group {}", g),
                                 {.name = std::to_string(number++), .tensor = parameter}) +
               (parameter.requires_grad() ? "\n" : ", no gradient\n");
    }
  }
  if (number == 0) throw_error<ArgumentError>("{}: there are no parameters", place);
  return lines;
}

std::string ZeroShards::change_of(const Seen& seen, const at::Tensor& parameter) const {
  if (parameter.unsafeGetTensorImpl() != seen.tensor._unsafe_get_target()) return kReplaced;
  if (parameter.sizes() != at::IntArrayRef(seen.sizes)) {
    return fmt::format("had the shape [{}] and has [{}]", fmt::join(seen.sizes, ", "),
                       fmt::join(parameter.sizes(), ", "));
  }
  if (parameter.scalar_type() != seen.dtype) {
    return fmt::format("had the dtype {} and has {}", c10::toString(seen.dtype),
                       c10::toString(parameter.scalar_type()));
  }
  if (parameter.device() != seen.device)
    return fmt::format("was on {} and is on {}", seen.device.str(), parameter.device().str());
  if (parameter.requires_grad() == seen.trained) return "";
  return seen.trained ? "has been frozen" : "has been unfrozen";
}

void ZeroShards::note_parameters() {
  seen_.clear();
  for (const auto& parameter : optim::parameters_of(optimizer_)) {
    seen_.push_back({.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                     .dtype = parameter.scalar_type(),
                     .device = parameter.device(),
                     .trained = parameter.requires_grad(),
                     .sizes = parameter.sizes().vec()});
  }
}

// A step in which nothing has changed makes no call for it.
void ZeroShards::agree_on_changes() {
  std::string change, refused;
  const auto parameters = optim::parameters_of(optimizer_);
  for (std::size_t i = 0; i < std::max(parameters.size(), seen_.size()); ++i) {
    const std::string what = i >= seen_.size()        ? "has been added"
                             : i >= parameters.size() ? "has been removed"
                                                      : change_of(seen_[i], parameters[i]);
    if (what.empty()) continue;
    const auto text = fmt::format("parameter {} {}", i, what);
    if (change.empty()) change = text;
    // Its state has another shape, or other ranks get the parameters that remain.
    const bool is_new = i >= seen_.size() || what == kReplaced;
    const bool fits =
        is_new || (i < parameters.size() && parameters[i].sizes() == at::IntArrayRef(seen_[i].sizes));
    if (!fits && refused.empty()) refused = text;
  }
  if (change.empty()) return;
  const auto lines = agreement_->run([&] { return parameters_text(where_); });
  agreement_->confirm(change,
                      {.user = zero_place(where_),
                       .lines = lines,
                       .advice = "Make the same change on all ranks before the same step"},
                      where_);
  if (!refused.empty()) {
    throw_error<ArgumentError>(
        "{}: {} since the last step; construct a new optimizer when parameters get another shape or are "
        "removed",
        zero_place(where_), refused);
  }
  note_parameters();
}

const std::vector<int>& ZeroShards::owners() {
  partition();
  return owners_;
}

// Groups that were added go to the ranks with the fewest elements, and no earlier parameter moves. A tied
// parameter, which LibTorch lists once for each of its modules, has one owner.
void ZeroShards::partition() {
  if (owners_.size() == optim::parameters_of(optimizer_).size()) return;
  owners_.clear();
  std::vector<std::int64_t> elements(static_cast<std::size_t>(group_.size()));
  std::unordered_map<const void*, int> owner_of;
  for (const auto& group : optimizer_.param_groups()) {
    const auto& params = group.params();
    const auto first = owners_.size();
    owners_.resize(first + params.size());
    std::vector<std::size_t> order(params.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](auto i) { return params[i].numel(); });
    for (const auto i : order) {
      const auto fewest = static_cast<int>(std::ranges::min_element(elements) - elements.begin());
      const auto [at, is_new] = owner_of.emplace(params[i].unsafeGetTensorImpl(), fewest);
      if (is_new) elements[static_cast<std::size_t>(fewest)] += params[i].numel();
      owners_[first + i] = at->second;
    }
  }
}

void ZeroShards::forget_states_of_others() {
  std::unordered_set<const void*> own;
  const auto parameters = optim::parameters_of(optimizer_);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (owners_[i] == group_.rank()) own.insert(parameters[i].unsafeGetTensorImpl());
  auto& states = optimizer_.state();
  for (auto at = states.begin(); at != states.end();)
    at = own.contains(at->first) ? std::next(at) : states.erase(at);
}

std::vector<OwnedParameter> ZeroShards::distinct_parameters() {
  partition();
  std::vector<OwnedParameter> all;
  std::unordered_set<const void*> seen;
  const auto parameters = optim::parameters_of(optimizer_);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (seen.insert(parameters[i].unsafeGetTensorImpl()).second)
      all.push_back({.index = i, .parameter = parameters[i], .owner = owners_[i]});
  }
  return all;
}

void ZeroShards::share_parameters(Where where) {
  const auto lines = modules::tell_on_failure({group_}, "ZeroRedundancyOptimizer", where, [&] {
    check_can_share(group_, optim::parameters_of(optimizer_), zero_place(where));
    return parameters_text(where);
  });
  compare_parameters(lines, where);
  auto shared = shared_ ? *shared_ : SharedParameters(group_);
  shared.move(distinct_parameters(), where);
  shared_ = std::make_unique<SharedParameters>(std::move(shared));
  group_.barrier(where);
}

void ZeroShards::step(const std::function<void()>& step_all) {
  const auto ends_step = c10::make_scope_exit([this] { agreement_->end_step(); });
  agree_on_changes();
  agreement_->run([&] { step_together(step_all); });
}

void ZeroShards::step_together(const std::function<void()>& step_all) {
  const auto parameters = distinct_parameters();
  optim::refuse_step("ZeroRedundancyOptimizer", optimizer_.param_groups());
  forget_states_of_others();
  is_complete_ = false;
  if (shared_ && shared_->check(parameters, where_)) share_parameters(where_);
  std::vector<at::Tensor> of_others;
  std::vector<std::vector<modules::NamedTensor>> of_rank(static_cast<std::size_t>(group_.size()));
  for (const auto& [index, parameter, owner] : parameters) {
    if (owner != group_.rank()) of_others.push_back(parameter);
    // An optimizer also steps a parameter that was frozen after it got a gradient.
    if (parameter.requires_grad() || parameter.grad().defined())
      of_rank[static_cast<std::size_t>(owner)].push_back({std::to_string(index), parameter});
  }
  const auto step_own = [&] {
    const HiddenGradients hidden(of_others);
    step_all();
  };
  if (shared_) {
    shared_->call_together(step_own);
    // So that autograd notices the change.
    for (const auto& parameter : of_others)
      if (parameter.grad().defined()) torch::autograd::impl::bump_version(parameter);
    return shared_->call_together([&] { group_.barrier(where_); });
  }
  step_own();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const comm::CallSite site(where_, "parameters of rank", rank);
    modules::broadcast_from(group_, rank, of_rank[static_cast<std::size_t>(rank)], where_);
  }
}

void ZeroShards::consolidate(int to, Where where) {
  partition();
  forget_states_of_others();
  // On all ranks: throw for a class without state dicts, and for a group with options of another class.
  const auto& kind = optim::kind_of(optimizer_);
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) (void)kind.options(optimizer_, g);
  const bool receives = group_.rank() == to;
  const comm::CallSite site(where, "state of the optimizer");
  const auto all = group_.gather_object(receives ? "" : optim::packed_states(optimizer_), to, where);
  is_complete_ = false;
  if (!receives) return;
  for (const auto& packed : all)
    if (!packed.empty()) optim::add_states(optimizer_, packed);
  is_complete_ = true;
}

void ZeroShards::require_can_rejoin() const {
  const auto* const run = runtime::current_run();
  const bool is_default = run != nullptr && &comm::state_of(run->group()) == &comm::state_of(group_);
  if (is_default && !shared_) return;
  throw_error<ArgumentError>(
      "{}: an elastic run does not support {}", zero_place(where_),
      is_default ? "share_parameters(), after which the ranks share memory, also that of a lost rank"
                 : "another process group than the default one; leave out process_group");
}

void ZeroShards::rejoin() {
  require_can_rejoin();
  agreement_ = std::make_unique<modules::ChangeAgreement>(group_);
  is_complete_ = false;
}

void ZeroShards::check_complete() const {
  if (is_complete_ || group_.size() == 1) return;
  throw_error<ArgumentError>(
      "the states of ZeroRedundancyOptimizer are on {} ranks; call consolidate_state_dict({}) on all ranks "
      "before state_dict() on rank {}",
      group_.size(), group_.rank(), group_.rank());
}

std::optional<optim::DistributedStates::Sharing> ZeroShards::sharing_of(const at::Tensor& parameter) const {
  return shared_ ? shared_->sharing_of(parameter) : std::nullopt;
}

}  // namespace lockstep::ddp
