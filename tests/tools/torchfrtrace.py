# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch's analyzer of flight recorders finds in a folder: torchfrtrace.py <folder>

One line for each collective: its name and number, "missing [ranks]", and each culprit with the kind of its error.
"""

import sys

from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

args = JobConfig().parse_args([sys.argv[1], "-p", "rank_"])
details, version = read_dir(args)
for each in build_db(details, args, version).collectives:
    words = [each.collective_name, f"#{each.collective_seq_id}"]
    if each.missing_ranks:
        words.append(f"missing {sorted(each.missing_ranks)}")
    for rank, other in sorted((each.mismatch_collectives or {}).items()):
        words.append(f"rank {rank}: {other.type_of_mismatch.state.name}")
    print(*words)
