# SPDX-License-Identifier: BSD-3-Clause
"""The plans of torch.distributed.pipelining: pipelining_schedules.py <ranks> <stages on each> <micro-batches>, lists
separated by commas. For each case its name, then "refused", or the compute actions and those with communication."""
import io
import csv
import itertools
import logging
import sys
import types

from torch.distributed.pipelining import schedules

NAMES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def fake_stage(ranks, local, index):
    return types.SimpleNamespace(group_size=ranks, group_rank=0, num_stages=ranks * local, stage_index=index, submod=None)


def is_wait(action):
    """Torch 2.15 plans its waits, too."""
    return action is not None and action.computation_type.name.startswith("WAIT_")


def without_waits_for_reductions(add_reduce_grad):
    """Each would take the time of an action in the planning of messages."""
    return lambda *args, **options: [a for a in add_reduce_grad(*args, **options) if not is_wait(a)]


def text(order):
    out = io.StringIO()
    writer = csv.writer(out)
    for rank in sorted(order):
        writer.writerow(action for action in order[rank] if not is_wait(action))
    return out.getvalue().replace("\r", "")


def without_typo(order):
    """The last rank's forwards of 1F1B's order are one too high (PyTorch runs this schedule without its order)."""
    last = max(order)
    order[last] = [a._replace(microbatch_index=a.microbatch_index - 1) if a.computation_type == schedules.F else a
                   for a in order[last]]
    return order


def with_comms(order, num_stages, microbatches):
    """What _prepare_schedule_with_comms() does, which refuses orders with REDUCE_GRAD."""
    lowered = {}
    for rank, actions in order.items():
        compute = [a for a in actions if a is not None and a.is_compute_op]
        lowered[rank] = schedules._add_reduce_grad(schedules._add_unshard_reshard(compute), microbatches)
    return schedules._add_send_recv(lowered, lambda stage: stage, num_stages)


def sorted_reshards(actions):
    """Python's order of several RESHARD is that of a set."""
    result = []
    for is_reshard, run in itertools.groupby(actions, lambda a: a.computation_type == schedules.RESHARD):
        result += sorted(run) if is_reshard else run
    return result


def plans(name, ranks, local, microbatches):
    kind = schedules.get_schedule_class(name)
    if issubclass(kind, schedules.PipelineScheduleSingle):
        if local != 1:
            raise ValueError("one stage on each rank")
        order = kind(fake_stage(ranks, 1, 0), microbatches).pipeline_order
        if name == "1F1B":
            order = without_typo(order)
        comms = with_comms(order, ranks, microbatches)
    else:
        schedule = kind([fake_stage(ranks, local, i * ranks) for i in range(local)], microbatches)
        order, comms = schedule.pipeline_order, schedule.pipeline_order_with_comms
    return text(order) + "comms\n" + text({rank: sorted_reshards(actions) for rank, actions in comms.items()})


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    schedules._add_reduce_grad = without_waits_for_reductions(schedules._add_reduce_grad)
    grid = [[int(n) for n in words.split(",")] for words in sys.argv[1:4]]
    for case in itertools.product(NAMES, *grid):
        print("case", *case)
        try:
            print(plans(*case), end="")
        except (ValueError, AssertionError, RuntimeError):
            print("refused")
