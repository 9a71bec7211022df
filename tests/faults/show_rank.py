# SPDX-License-Identifier: BSD-3-Clause
"""Writes its arguments and environment to the folder SHOW_TO: show_rank.py [--fail-first | --fail] [anything...]"""

import json
import os
import sys
import time

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]


def file_of(rank):
    return os.path.join(os.environ["SHOW_TO"], f"{rank}.{attempt}.json")


# Under another name until it is whole: a launcher may stop this rank at any moment once another one has failed.
own = file_of(os.environ["RANK"])
with open(own + ".part", "w") as file:
    json.dump({"environment": dict(os.environ), "arguments": sys.argv[1:]}, file)
os.rename(own + ".part", own)

if "--fail" in sys.argv or ("--fail-first" in sys.argv and attempt == "0"):
    while not all(os.path.exists(file_of(rank)) for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
    sys.exit(5)
