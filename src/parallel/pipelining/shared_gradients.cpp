// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/shared_gradients.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "fsdp/module_groups.h"
#include "fsdp/sharded_state_dict.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"

namespace lockstep::pipelining {
namespace {

constexpr std::size_t kBucketBytes = 25 * 1024 * 1024;  // as DDP's

// Each once: modules repeat shared ones.
Tensors parameters_of(const PipelineStage& stage) {
  Tensors parameters;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& parameter : stage.submodule()->parameters())
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      parameters.push_back(parameter);
  return parameters;
}

at::Tensor flat_gradient(const at::Tensor& parameter) {
  const auto& gradient = parameter.grad();
  return gradient.defined() ? gradient.reshape({-1}) : at::zeros({parameter.numel()}, parameter.options());
}

void set_gradient(const at::Tensor& parameter, const at::Tensor& values) {
  auto& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = at::empty_like(parameter);
  gradient.copy_(values.view(gradient.sizes()));
}

// Parameters of one element type. Behind the gradients, the call has a number for each parameter: how many
// replicas have a gradient of it. Where none has, optimizers must find none, as in one process.
void average_alike(const Tensors& parameters, const ProcessGroup& group) {
  Tensors flat;
  for (const auto& parameter : parameters) flat.push_back(flat_gradient(parameter));
  const auto count = static_cast<std::int64_t>(parameters.size());
  const auto own_uses = at::ones({count}, flat.front().options());
  for (std::int64_t i = 0; i < count; ++i)
    if (!parameters[static_cast<std::size_t>(i)].grad().defined()) own_uses[i].zero_();
  flat.push_back(own_uses);
  const auto buffer = at::cat(flat);
  const auto total = buffer.numel() - count;
  buffer.narrow(0, 0, total).div_(group.size());
  group.all_reduce(buffer);
  at::Tensor uses;  // read only where it says something new, since that waits for the device
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& parameter = parameters[static_cast<std::size_t>(i)];
    const auto values = buffer.narrow(0, begin, parameter.numel());
    begin += parameter.numel();
    if (!parameter.grad().defined()) {
      if (!uses.defined()) uses = buffer.narrow(0, total, count).cpu();
      if (!uses[i].is_nonzero()) continue;
    }
    set_gradient(parameter, values);
  }
}

// By buckets, because each is a copy.
void average(const Tensors& parameters, const ProcessGroup& group) {
  struct Bucket {
    Tensors parameters;
    std::size_t bytes = 0;
  };
  std::map<at::ScalarType, Bucket> buckets;
  for (const auto& parameter : parameters) {
    auto& bucket = buckets[parameter.scalar_type()];
    if (!bucket.parameters.empty() && bucket.bytes + parameter.nbytes() > kBucketBytes) {
      average_alike(bucket.parameters, group);
      bucket = {};
    }
    bucket.parameters.push_back(parameter);
    bucket.bytes += parameter.nbytes();
  }
  for (const auto& [dtype, bucket] : buckets) average_alike(bucket.parameters, group);
}

}  // namespace

SharedGradients::SharedGradients(ProcessGroup group, std::vector<PipelineStage> stages, int first_tag)
    : group_(std::move(group)), stages_(std::move(stages)), first_tag_(first_tag) {
  agreements_.emplace_back(group_);
  for (const auto& stage : stages_) {
    const auto& replicas = stage.options().data_parallel_group;
    of_replicas_.push_back(replicas ? agreements_.size() : 0);
    if (replicas) agreements_.emplace_back(*replicas);
  }
}

void SharedGradients::end_others(const std::string& why) const {
  for (const auto& each : agreements_) each.end_others(why);
}

void SharedGradients::end_run() {
  for (auto& each : agreements_) each.end_step();
}

void SharedGradients::check_stages() const {
  for (const auto& check : checks_) {
    const auto change = check.change();
    if (change.empty()) continue;
    const auto message = fmt::format("{}: {}", numbered_rank(group_.rank(), group_.size()), change);
    end_others(message);
    throw ArgumentError(message);
  }
}

void SharedGradients::agree_on_changes() {
  check_stages();
  for (std::size_t i = 0; i < checks_.size(); ++i) agree_on_trained(i);
}

void SharedGradients::agree_on_trained(std::size_t stage) {
  const auto change = checks_[stage].change_of_trained();
  if (change.empty()) return;
  if (of_replicas_[stage] > 0) {
    try {
      agreements_[of_replicas_[stage]].confirm(change, text_of(stage), where_);
    } catch (const Error& error) {
      end_others(error.what());
      throw;
    }
  }
  checks_[stage].note_trained();
}

modules::ModuleText SharedGradients::text_of(std::size_t stage) const {
  return {.user = "a pipeline",
          .lines = checks_[stage].lines(),
          .advice = "Freeze and unfreeze parameters in all replicas of a stage before the same run"};
}

void SharedGradients::begin_run() {
  if (!checks_.empty()) return;
  // A first run that fails is followed by another first run.
  auto forget = c10::make_scope_exit([this] {
    checks_.clear();
    tied_.clear();
  });
  for (const auto& stage : stages_) checks_.emplace_back(stage);
  const c10::NoGradGuard no_grad;
  copy_replicas();
  find_tied();
  copy_tied();
  forget.release();
}

void SharedGradients::begin_step() {
  waiting_.clear();
  for (const auto& stage : stages_)
    for (const auto& parameter : parameters_of(stage)) ++waiting_[parameter.unsafeGetTensorImpl()];
  for (auto& [name, tied] : tied_) {
    if (tied.parameter.defined() && tied.owners.size() > 1)
      tied.before = std::exchange(tied.parameter.mutable_grad(), {});
  }
}

void SharedGradients::copy_replicas() const {
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto& stage = stages_[i];
    const auto& group = stage.options().data_parallel_group;
    if (!group) continue;
    auto text = text_of(i);
    auto tensors = modules::distinct(stage.submodule()->named_parameters());
    for (auto& buffer : modules::distinct(stage.submodule()->named_buffers())) {
      text.lines += modules::describe("buffer", buffer) + "\n";
      tensors.push_back(std::move(buffer));
    }
    modules::check_same_on_all_ranks(*group, text, where_);
    const auto user = fmt::format("stage {} of a pipeline", stage.stage_index());
    modules::check_can_be_sent(*group, user.c_str(), tensors);
    modules::broadcast_from(*group, 0, tensors, where_);
  }
}

void SharedGradients::reduce(int stage_index, double divisor) {
  const auto stage = std::find_if(stages_.begin(), stages_.end(),
                                  [&](const auto& each) { return each.stage_index() == stage_index; });
  const c10::NoGradGuard no_grad;
  Tensors ready;
  for (const auto& parameter : parameters_of(*stage))
    if (--waiting_[parameter.unsafeGetTensorImpl()] == 0) ready.push_back(parameter);
  if (stage->options().data_parallel_group) {
    const comm::CallSite site(where_, "gradients of stage", stage_index);
    average(ready, *stage->options().data_parallel_group);
  }
  if (divisor == 1) return;
  for (const auto& parameter : ready)
    if (parameter.grad().defined()) parameter.mutable_grad().div_(divisor);
}

void SharedGradients::find_tied() {
  std::string mine;
  for (const auto& stage : stages_) {
    for (const auto& [name, parameter] : stage.options().tied_parameters) {
      if (!parameter.defined() || name.find('\n') != std::string::npos)
        throw_error<ArgumentError>(
            "stage {}: the tied parameter \"{}\" is undefined or its name has two lines", stage.stage_index(),
            name);
      auto& tied = tied_[name];
      const auto part = fsdp::part_of(parameter);
      if (tied.parameter.defined()) {
        if (!tied.parameter.is_same(part))
          throw_error<ArgumentError>(
              "stage {}: the tied parameter \"{}\" differs from that in this rank's other stage; use "
              "one",
              stage.stage_index(), name);
        continue;
      }
      tied.parameter = part;
      mine += fmt::format("{} {} {}\n", stage.stage_index(), fmt::join(part.sizes(), "x"), name);
    }
  }
  const comm::CallSite site(where_, "names of tied parameters");
  const auto all = group_.all_gather_object(mine);
  for (int rank = 0; rank < group_.size(); ++rank) {
    std::istringstream lines(all[static_cast<std::size_t>(rank)]);
    for (std::string line; std::getline(lines, line);) {
      const auto sizes = line.find(' ') + 1, name = line.find(' ', sizes) + 1;
      tied_[line.substr(name)].owners.push_back(
          {std::stoi(line), rank, line.substr(sizes, name - 1 - sizes)});
    }
  }
  for (auto& [name, tied] : tied_) {
    std::sort(tied.owners.begin(), tied.owners.end(),
              [](const Owner& a, const Owner& b) { return a.stage < b.stage; });
    const auto& first = tied.owners.front();
    for (const auto& other : tied.owners)
      if (other.sizes != first.sizes)
        throw_error<ArgumentError>(
            "the tied parameter \"{}\" has the sizes {} in stage {} on rank {} and {} in stage {} on rank {}",
            name, first.sizes, first.stage, first.rank, other.sizes, other.stage, other.rank);
  }
}

Tensors SharedGradients::exchange(const Tied& tied, const at::Tensor& own, int tag) const {
  const comm::CallSite site(where_, "tied parameters");
  Tensors all;
  std::vector<Work> works;
  for (const auto& [stage, rank, sizes] : tied.owners) {
    if (rank == group_.rank()) {
      all.push_back(own);
      continue;
    }
    all.push_back(at::empty_like(own));
    // NCCL runs the messages of two ranks one after the other.
    const bool sends_first = group_.rank() < rank;
    if (sends_first) works.push_back(group_.send_async(own, rank, tag));
    works.push_back(group_.recv_async(all.back(), rank, tag));
    if (!sends_first) works.push_back(group_.send_async(own, rank, tag));
  }
  for (auto& work : works) work.wait();
  return all;
}

void SharedGradients::copy_tied() {
  int tag = first_tag_;
  for (const auto& [name, tied] : tied_) {
    ++tag;
    if (!tied.parameter.defined()) continue;
    const auto all = exchange(tied, tied.parameter.detach().contiguous(), tag);
    if (tied.owners.front().rank != group_.rank()) tied.parameter.copy_(all.front());
  }
}

void SharedGradients::sum_tied(double divisor) {
  const c10::NoGradGuard no_grad;
  int tag = first_tag_;
  for (auto& [name, tied] : tied_) {
    ++tag;
    if (!tied.parameter.defined() || tied.owners.size() < 2) continue;
    const auto& parameter = tied.parameter;
    const bool is_used = parameter.grad().defined() || tied.before.defined();
    const auto own = at::cat({flat_gradient(parameter), at::full({1}, is_used ? 1 : 0, parameter.options())});
    const auto all = exchange(tied, own, tag);
    auto sum = all.front().clone();
    for (std::size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
    if (!is_used && !sum[-1].is_nonzero()) continue;
    const auto values = sum.narrow(0, 0, parameter.numel()).view(parameter.sizes());
    if (tied.before.defined()) values.add_(std::exchange(tied.before, {}).div_(divisor));
    set_gradient(parameter, values);
  }
}

double SharedGradients::clip(double max_norm, const ClipGradNormOptions& options,
                             std::source_location where) const {
  const auto is_of_other_rank = [&](const at::Tensor& parameter) {
    return std::ranges::any_of(tied_, [&](const auto& each) {
      const auto& tied = each.second;
      return tied.parameter.is_same(parameter) && tied.owners.front().rank != group_.rank();
    });
  };
  std::set<const c10::TensorImpl*> seen;  // once for those tied on this rank
  std::vector<modules::CountedGradient> gradients;
  for (const auto& stage : stages_) {
    for (const auto& entry : fsdp::entries_of(*stage.submodule(), /*with_ignored=*/false).parameters) {
      if (!seen.insert(entry.part.unsafeGetTensorImpl()).second) continue;
      gradients.push_back(fsdp::counted_gradient(entry));
      gradients.back().counts = !is_of_other_rank(entry.part);
    }
  }
  return modules::clip_gradients(gradients, max_norm, options, &group_, where);
}

}  // namespace lockstep::pipelining
