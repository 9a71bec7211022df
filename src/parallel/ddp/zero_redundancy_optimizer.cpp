// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/serialize/archive.h>

#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/mapped_memory.h"
#include "intercept/storage_guard.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "modules/change_agreement.h"
#include "optim/group_entries.h"
#include "optim/parameter_rows.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep::ddp {
namespace {

using torch::optim::Optimizer;
using States = std::remove_reference_t<decltype(std::declval<Optimizer&>().state())>;

constexpr const char* kReplaced = "has been replaced by another tensor";

std::vector<at::Tensor> all_parameters(const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

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

std::string place_of(std::source_location where) {
  return fmt::format("ZeroRedundancyOptimizer at {}:{}",
                     std::filesystem::path(where.file_name()).filename().string(), where.line());
}

std::int64_t aligned_bytes(const at::Tensor& tensor) {
  return comm::aligned(static_cast<std::int64_t>(tensor.nbytes()));
}

// Gives the parameters memory of a block, one after the other. Their values are then those of the owner.
void move_into(const at::Tensor& block, std::vector<at::Tensor>& parameters, bool is_owner) {
  std::int64_t offset = 0;
  for (auto& parameter : parameters) {
    const auto options = parameter.options().requires_grad(false);
    const auto flat = comm::tensor_in(block, offset, {parameter.numel()}, options);
    const auto shared = flat.as_strided(parameter.sizes(), parameter.strides());
    offset += aligned_bytes(parameter);
    if (is_owner) shared.copy_(parameter.detach());
    parameter.set_data(shared);
  }
}

std::string saved(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

// The states in `text`, which the optimizer has afterwards in place of its own.
void load(Optimizer& optimizer, const std::string& text) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(text);
  archive.load_from(stream);
  optimizer.load(archive);
}

void move_states(States& from, States& into) {
  for (auto& [key, state] : from) into[key] = std::move(state);
  from.clear();
}

}  // namespace

ZeroStart::ZeroStart(const std::optional<ProcessGroup>& process_group, std::source_location from)
    : group(runtime::required_group(process_group, "ZeroRedundancyOptimizer")), where(from) {}

void ZeroStart::tell(const std::exception& reason) const {
  if (!has_compared) modules::tell_failure({group}, "ZeroRedundancyOptimizer", reason, where);
}

ZeroShards::ZeroShards(Optimizer& optimizer, ZeroStart& start)
    : optimizer_(optimizer),
      group_(start.group),
      where_(start.where),
      entries_(optim::shared_entries(optimizer)) {
  comm::refuse_with_python(comm::state_of(group_), "ZeroRedundancyOptimizer", "use the optimizer itself");
  const auto lines = parameters_text(where_);
  start.has_compared = true;
  compare_parameters(lines, where_);
  note_parameters();
  agreement_ = std::make_unique<modules::ChangeAgreement>(group_);
  entries_->consolidate = [this] { consolidate(0, where_); };
  set_complete(false);
}

ZeroShards::~ZeroShards() = default;

void ZeroShards::compare_parameters(const std::string& lines, Where where) const {
  modules::check_same_on_all_ranks(
      group_,
      {.user = place_of(where),
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
  const auto place = place_of(where);
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
  for (const auto& parameter : all_parameters(optimizer_)) {
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
  const auto parameters = all_parameters(optimizer_);
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
                      {.user = place_of(where_),
                       .lines = lines,
                       .advice = "Make the same change on all ranks before the same step"},
                      where_);
  if (!refused.empty()) {
    throw_error<ArgumentError>(
        "{}: {} since the last step; construct a new optimizer when parameters get another shape or are "
        "removed",
        place_of(where_), refused);
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
  if (owners_.size() == all_parameters(optimizer_).size()) return;
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
  const auto parameters = all_parameters(optimizer_);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (owners_[i] == group_.rank()) own.insert(parameters[i].unsafeGetTensorImpl());
  auto& states = optimizer_.state();
  for (auto at = states.begin(); at != states.end();)
    at = own.contains(at->first) ? std::next(at) : states.erase(at);
}

void ZeroShards::check_can_share(Where where) const {
  if (!comm::maps_memory(group_)) {
    throw_error<ArgumentError>(
        "{}: share_parameters() needs a group of backend shm, whose ranks are on one host; this one has {}",
        place_of(where), group_.backend_name());
  }
  for (const auto& parameter : all_parameters(optimizer_)) {
    if (!parameter.is_cpu()) {
      throw_error<ArgumentError>("{}: share_parameters() needs parameters on the CPU; one is on {}",
                                 place_of(where), parameter.device().str());
    }
    if (intercept::has_guard(parameter)) {
      throw_error<ArgumentError>(
          "{}: share_parameters() does not take parameters of parallelize_module() or fully_shard()",
          place_of(where));
    }
    if (!parameter.is_non_overlapping_and_dense()) {
      throw_error<ArgumentError>("{}: share_parameters() needs dense parameters; one has strides [{}]",
                                 place_of(where), fmt::join(parameter.strides(), ", "));
    }
  }
}

std::vector<ZeroShards::Owned> ZeroShards::distinct_parameters() {
  partition();
  std::vector<Owned> all;
  std::unordered_set<const void*> seen;
  const auto parameters = all_parameters(optimizer_);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (seen.insert(parameters[i].unsafeGetTensorImpl()).second)
      all.push_back({.index = i, .parameter = parameters[i], .owner = owners_[i]});
  }
  return all;
}

bool ZeroShards::is_shared(const at::Tensor& parameter) const {
  const auto found = shared_.find(parameter.unsafeGetTensorImpl());
  return found != shared_.end() && found->second.memory == parameter.const_data_ptr();
}

void ZeroShards::share_parameters(Where where) {
  const auto lines = modules::tell_on_failure({group_}, "ZeroRedundancyOptimizer", where, [&] {
    check_can_share(where);
    return parameters_text(where);
  });
  compare_parameters(lines, where);
  move_to_shared_memory(where);
}

// What lies elsewhere on some rank. The parameters of an owner lie in one block of its memory.
void ZeroShards::move_to_shared_memory(Where where) {
  const auto parameters = distinct_parameters();
  const auto moves = at::zeros({static_cast<std::int64_t>(parameters.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    moves[static_cast<std::int64_t>(i)] = is_shared(parameters[i].parameter) ? 0 : 1;
  group_.all_reduce(moves, ReduceOp::MAX, where);
  for (int owner = 0; owner < group_.size(); ++owner) {
    std::vector<at::Tensor> owned;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].owner != owner || moves[static_cast<std::int64_t>(i)].item<int>() == 0) continue;
      owned.push_back(parameters[i].parameter);
      bytes += aligned_bytes(owned.back());
    }
    if (bytes == 0) continue;
    const auto block = comm::map_on_all_ranks(group_, {owner}, bytes, where).front();
    move_into(block, owned, owner == group_.rank());
  }
  shared_.clear();
  entries_->shared_parameters.clear();
  entries_->sharing_ranks = group_.size();
  for (const auto& [index, parameter, owner] : parameters) {
    auto* const key = parameter.unsafeGetTensorImpl();
    shared_[key] = {.parameter = parameter, .memory = parameter.const_data_ptr()};
    entries_->shared_parameters[key] = owner == group_.rank();
  }
  group_.barrier(where);
}

// Before a step, which sends nothing. Also a barrier: the backward of other ranks may read what this rank
// writes.
void ZeroShards::check_shared() {
  enum : int { kFine, kNew, kElsewhere };
  const auto worst = at::zeros({1}, at::kInt);
  auto& own = *worst.data_ptr<int>();
  std::size_t elsewhere = 0;
  for (const auto& each : distinct_parameters()) {
    if (is_shared(each.parameter)) continue;
    const bool is_new = !shared_.contains(each.parameter.unsafeGetTensorImpl());
    if (!is_new) elsewhere = each.index;
    own = std::max<int>(own, is_new ? kNew : kElsewhere);
  }
  const bool is_here = own == kElsewhere;
  call_together([&] { group_.all_reduce(worst, ReduceOp::MAX, where_); });
  if (own == kElsewhere) {
    throw_error<Error>(
        "{}: {}; after what replaces the memory of parameters, such as to() and torch::load(), call "
        "share_parameters() again",
        place_of(where_),
        is_here ? fmt::format("parameter {} no longer lies in shared memory", elsewhere)
                : "a parameter of another rank no longer lies in shared memory");
  }
  if (own == kNew) share_parameters(where_);
}

void ZeroShards::call_together(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    for (const auto& [key, shared] : shared_)
      intercept::forbid_access(shared.parameter, intercept::why_forbidden(error.what()));
    throw;
  }
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
  set_complete(false);
  const bool shares = !shared_.empty();
  if (shares) check_shared();
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
  if (!shares) step_own();
  if (shares) {
    call_together(step_own);
    // So that autograd notices the change.
    for (const auto& parameter : of_others)
      if (parameter.grad().defined()) torch::autograd::impl::bump_version(parameter);
    return call_together([&] { group_.barrier(where_); });
  }
  for (int rank = 0; rank < group_.size(); ++rank)
    modules::broadcast_from(group_, rank, of_rank[static_cast<std::size_t>(rank)], where_);
}

void ZeroShards::consolidate(int to, Where where) {
  partition();
  forget_states_of_others();
  const auto all = group_.gather_object(group_.rank() == to ? "" : saved(optimizer_), to, where);
  if (group_.rank() != to) return set_complete(false);
  States merged;
  move_states(optimizer_.state(), merged);
  for (const auto& text : all) {
    if (text.empty()) continue;
    load(optimizer_, text);
    move_states(optimizer_.state(), merged);
  }
  move_states(merged, optimizer_.state());
  set_complete(true);
}

void ZeroShards::set_complete(bool complete) {
  entries_->incomplete = complete || group_.size() == 1
                             ? ""
                             : fmt::format(
                                   "the states of ZeroRedundancyOptimizer are on {} ranks; call "
                                   "consolidate_state_dict({}) on all ranks before state_dict() on rank {}",
                                   group_.size(), group_.rank(), group_.rank());
}

}  // namespace lockstep::ddp
