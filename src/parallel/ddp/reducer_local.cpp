// SPDX-License-Identifier: BSD-3-Clause

// Note [Local gradients]
//
// A gradient is local if no reduced backward has averaged it since it was added. no_sync() means that;
// otherwise the forward came past the wrapper, and the parameter is marked (optim/unaveraged.h). Where they
// are seen:
//
// - A hook of GradientHooks runs while no reduced backward is expected.
// - A node without such a hook has added the gradient (UnhookedGradients): the parameter was frozen when the
//   hooks were made, or has been converted since.
//
// Several reducers may have hooks on one parameter. What one of them reduces, or has accumulate, is not
// local, or meant to be, for the others (Claim).
#include <algorithm>
#include <filesystem>

#include <torch/csrc/autograd/engine.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "ddp/reducer.h"
#include "intercept/nested_backward.h"
#include "optim/unaveraged.h"

namespace lockstep::ddp {

void Reducer::watch_gradients(std::vector<modules::NamedTensor> parameters) {
  const std::lock_guard lock(mutex_);
  unhooked_.reset();
  watched_ = std::move(parameters);
  unhooked_ = std::make_unique<UnhookedGradients>(
      watched_, [this](std::size_t parameter) { on_unhooked_gradient(watched_[parameter]); });
}

void Reducer::on_unhooked_gradient(const modules::NamedTensor& parameter) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.is_same(parameter.tensor)) step_.is_local[i] = true;
  if (!is_meant_to_be_local()) mark_unaveraged(parameter.name, parameter.tensor);
}

void Reducer::take_local_gradient(std::size_t parameter) {
  const auto others = hooks_->claim_of_others(parameter);
  if (others == Claim::reduced) return;
  step_.is_local[parameter] = true;
  if (is_meant_to_be_local() || others == Claim::local) return;
  mark_unaveraged(parameters_[parameter].name, parameters_[parameter].tensor);
}

bool Reducer::is_meant_to_be_local() {
  if (step_.local_forwards > 0 && !std::exchange(step_.in_local_backward, true)) {
    intercept::in_outer_backward([this] {
      intercept::note_wrapped_backward();
      torch::autograd::Engine::get_default_engine().queue_callback([this] { end_local_backward(); });
    });
  }
  return step_.in_local_backward || (options_.sync != nullptr && !*options_.sync);
}

void Reducer::mark_unaveraged(const std::string& name, const at::Tensor& parameter) {
  if (group_.size() == 1) return;
  const auto& where = options_.where;
  if (!unaveraged_) {
    unaveraged_ = std::make_shared<const std::string>(fmt::format(
        "{}, made at {}:{}: the gradient of {} came from a backward that is not averaged over the ranks. "
        "Call the wrapper's forward(), not the module's own; one backward for each; or no_sync(), where this "
        "is meant",
        whoami(), std::filesystem::path(where.file_name()).filename().string(), where.line(), name));
  }
  const bool was_used = optim::mark_unaveraged(parameter, unaveraged_);
  marked_.push_back(parameter);
  is_used_ = is_used_ || was_used;
  if (const int backward = intercept::current_backward(); std::exchange(marked_in_, backward) == backward)
    return;
  intercept::in_outer_backward(
      [this] { torch::autograd::Engine::get_default_engine().queue_callback([this] { judge_marked(); }); });
}

// At the end of a backward, when all wrappers that average it are known.
void Reducer::judge_marked() {
  const std::lock_guard lock(mutex_);
  const auto marked = std::exchange(marked_, {});
  if (const bool was_used = std::exchange(is_used_, false);
      intercept::is_wrapped_backward(intercept::current_backward()) && !was_used)
    return;
  for (const auto& each : marked) optim::confirm_unaveraged(each);
  if (!marked.empty() && !std::exchange(has_warned_, true)) log(LogLevel::warning, *unaveraged_);
}

void Reducer::end_local_backward() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(step_.in_local_backward, false) && step_.local_forwards > 0) --step_.local_forwards;
  note_claim();
}

}  // namespace lockstep::ddp
