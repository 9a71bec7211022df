// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/autograd_hooks.h"
#include "ddp/buckets.h"

namespace lockstep::ddp {

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

// Which gradients of a reducer's parameters are local, and which are meant to be. The reducer's lock protects
// it.
class LocalGradients {
 public:
  // `at_end`: calls a function at the end of the backward that runs on this thread, under the reducer's lock.
  // The other arguments outlive it.
  using AtEnd = std::function<void(void (LocalGradients::*function)())>;
  LocalGradients(const Buckets& buckets, const ProcessGroup& group, const ReducerOptions& options,
                 AtEnd at_end);

  // A forward in no_sync() whose backward is to come.
  void begin_local_forward();
  void begin_reduced_forward() { forwards_ = 0; }
  // Whether no_sync() covers a backward that runs or is to come.
  bool are_expected() const { return forwards_ > 0 || in_backward_; }

  // A gradient has been added that this reducer does not reduce.
  void add(std::size_t parameter, Claim of_others);
  void add_unhooked(const modules::NamedTensor& parameter);
  // All have been averaged.
  void end_reduced_step();
  // Whether a parameter has one.
  bool exist() const;

  // Averages those of parameters that are not among these. Ranks may have accumulated gradients of different
  // parameters. Collective.
  void average_leaving(const std::vector<TrainedParameter>& parameters);
  // Before Buckets::replace_parameters(): these parameters follow.
  void replace_parameters(const std::vector<TrainedParameter>& parameters);

 private:
  bool are_meant();
  void mark_unaveraged(const std::string& name, const at::Tensor& parameter);
  void judge_marked();
  void end_local_backward();

  const Buckets& buckets_;
  const ProcessGroup& group_;
  const ReducerOptions& options_;
  AtEnd at_end_;
  std::vector<bool> is_local_;                     // [parameter]
  int forwards_ = 0;                               // in no_sync(), whose backwards are to come
  bool in_backward_ = false;                       // of one of them
  std::shared_ptr<const std::string> unaveraged_;  // the text of the first backward past the wrapper
  std::vector<at::Tensor> marked_;                 // by it, until it ends
  int marked_in_ = -1;                             // the number of the last one
  bool is_used_ = false;                           // an optimizer has used such a gradient
  bool has_warned_ = false;
};

}  // namespace lockstep::ddp
