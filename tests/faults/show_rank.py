# SPDX-License-Identifier: BSD-3-Clause
"""A rank that tells what it was given, into the folder SHOW_TO: show_rank.py [--fail-first | --fail] [anything...]"""

import json
import os
import sys

rank = os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(os.path.join(os.environ["SHOW_TO"], f"{rank}.{attempt}.json"), "w") as file:
    json.dump({"environment": dict(os.environ), "arguments": sys.argv[1:]}, file)
if "--fail" in sys.argv or ("--fail-first" in sys.argv and attempt == "0"):
    sys.exit(5)
