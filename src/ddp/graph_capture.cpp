// SPDX-License-Identifier: BSD-3-Clause
// The part of the reducer for GraphedStep. The host's part of a step runs during capture only.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "ddp/reducer.h"
#include "graphs/graph_phase.h"

namespace lockstep::ddp {

void Reducer::enter_graph(bool in_join) {
  const auto phase = graph_phase();
  if (phase == GraphPhase::none) return;
  const auto refuse = [](bool set, const char* what, const char* remedy) {
    if (set) refuse_in_graph(fmt::format("DistributedDataParallel with {}", what), remedy);
  };
  refuse(finds_unused(), "find_unused_parameters",
         "the host asks in every step which parameters were used; static_graph asks in the first only");
  refuse(!optimizers_.empty(), "optimizer_in_backward",
         "the order of steps depends on the speed of reductions; step after backward");
  refuse(options_.gradient_dtype.has_value() || options_.after_reduction, "mixed_precision",
         "parameters change their memory in every step; use Autocast");
  refuse(in_join, "join()",
         "the host asks in every step which ranks have data; give all ranks the same number of batches");
  refuse(phase == GraphPhase::capture && learned_.order == Learned::Order::known,
         "buckets that are rebuilt in this step", "raise warmup");
  follow_stream();
}

// The hooks' nodes run on the stream on which they were made. It must be the captured one, which the warm-up
// already uses.
void Reducer::follow_stream() {
  const auto device = parameters_.front().tensor.device();
  if (graph_phase() != GraphPhase::warm_up) return;
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (hooks_stream_ == stream) return;
  renew_hooks();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto made_on = hooks_->node(i)->stream();
    if (!made_on || *made_on == stream) continue;
    throw Error(fmt::format(
        "{}: a tensor of an earlier forward is alive, such as a loss or an output, and keeps the node that "
        "accumulates the gradient of {} on a stream that GraphedStep does not capture: drop it before the "
        "first call of the step",
        whoami(), parameters_[i].name));
  }
  hooks_stream_ = stream;
}

}  // namespace lockstep::ddp
