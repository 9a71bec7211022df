// SPDX-License-Identifier: BSD-3-Clause
// The reducer in a step that is captured in a graph: the host's part runs while it is captured, and never
// again.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

#include "ddp/reducer.h"

namespace lockstep::ddp {

void Reducer::enter_graph(bool in_join) {
  const auto phase = graph_phase();
  if (phase == GraphPhase::none) return;
  const auto refuse = [](bool set, const char* what, const char* remedy) {
    if (set) refuse_in_graph(fmt::format("DistributedDataParallel with {}", what), remedy);
  };
  refuse(options_.find_unused_parameters && !options_.static_graph, "find_unused_parameters",
         "the host asks in every step which parameters were used; static_graph asks in the first only");
  refuse(!optimizers_.empty(), "optimizer_in_backward",
         "what is stepped when depends on how fast reductions are; step after backward");
  refuse(options_.gradient_dtype.has_value() || options_.after_reduction, "mixed_precision",
         "parameters change places in every step; use Autocast");
  refuse(in_join, "join()", "the host asks in every step who has data; give all ranks as many batches");
  refuse(phase == GraphPhase::capture && arrival_known_ && !rebuilt_,
         "buckets that are laid out anew in this step", "raise warmup");
  follow_stream();
}

// The hooks' nodes run on the stream on which they were made. In a graph that has to be the one that is
// captured, which the warm-up uses already.
void Reducer::follow_stream() {
  const auto device = parameters_.front().tensor.device();
  if (graph_phase() != GraphPhase::warm_up) return;
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (hooks_stream_ == stream) return;
  renew_hooks();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto made_on = hooks_->node(i)->stream();
    if (!made_on || *made_on == stream) continue;
    throw Error(
        fmt::format("{}: something of an earlier forward is alive, such as a loss or an output that was "
                    "kept, and with it the "
                    "node at which gradients of {} arrive, on another stream than the one that GraphedStep "
                    "captures: let it go "
                    "before the first call of the step",
                    whoami(), parameters_[i].name));
  }
  hooks_stream_ = stream;
}

}  // namespace lockstep::ddp
