// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <source_location>

#include <lockstep/checkpoint/training_state.h>

namespace lockstep {
class Context;
}

namespace lockstep::elastic {

/// Runs `body`, which trains and calls `state.commit()` after each optimizer step. When a rank is lost, the others
/// keep their process and their memory: they wait for its replacement or go on without it, every rank returns to the last
/// step that all of them have committed, and `body` is called again. With a replacement the results are those of a run
/// without the loss, to the bit.
///
///     TrainingState state;
///     state.add("model", ddp).add("optimizer", optimizer).add("loader", loader).add("epoch", epoch);
///     state.add_generator();
///     elastic::run(state, [&](const Context& context) {
///       for (; epoch < epochs; ++epoch) {
///         loader.set_epoch(epoch);
///         for (auto& [images, labels] : loader) {
///           F::cross_entropy(ddp->forward(images), labels).backward();
///           optimizer.step();
///           state.commit();
///         }
///       }
///     });
///
/// `lockstep run --on-loss replace --max-restarts N` starts the replacement, on the same host: the program from its
/// beginning, or a process that `--spares` keeps ready. Until its elastic::run() the calls of a replacement on the
/// default group are simulated, as with the backend "fake": they complete at once, and every rank seems to have
/// given what this one gives. Everything that changes during training belongs in `state`, and everything before
/// elastic::run() must be the same at each start. Under another launcher, and in one process, run() only calls
/// `body`, and commit() does nothing.
///
/// `lockstep run --on-loss shrink --min-ranks N` starts no replacement: the ranks that are left go on at once. `body` is
/// called with a context whose rank() and world_size() are new, and the rest of the epoch is shared out among them, so
/// that each sample is seen once. Gradients are then divided by the smaller world size. The results are, to the bit,
/// those of a run of so many ranks that start with the states that these ranks had committed.
///
/// A rank is lost when its process ends at any moment from the start of elastic::run() on all ranks to its end on all
/// ranks, by a signal or with any exit code; rank 0 is like the others. Errors of calls must leave `body`.
/// Its exceptions that do not come from the loss of a rank end this process, if nothing catches them, and so lose
/// this rank. All ranks commit after the same steps.
///
/// All ranks call it, once in a run, and no other thread uses the default group or the parts of `state` meanwhile.
/// A module of fully_shard() takes part if it has `share_memory = false` and no mesh: each rank commits its shards of
/// the parameters and the optimizer's states for them, and a replacement inherits those of the lost rank. The
/// states of a ZeroRedundancyOptimizer without share_parameters() are inherited in this way, too. With --on-loss shrink
/// both are an ArgumentError, and so is a loader that LoaderBase::require_can_shrink() refuses.
///
/// The group needs the backend "shm" or "auto" on the CPU. Throws ArgumentError for other backends, for groups of new_group()
/// and split_group(), and for parts that cannot return to a commit yet: other modules of fully_shard(), modules of
/// parallelize_module() and pipelines, and communication hooks that keep a state. Throws
/// RendezvousError if a rank or a replacement does not come within the timeout of the group. Not in PyTorch, whose
/// `torch.distributed.elastic` starts all ranks again.
void run(TrainingState& state, const std::function<void(const Context& context)>& body,
         std::source_location where = std::source_location::current());

}  // namespace lockstep::elastic
