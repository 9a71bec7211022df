#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A GPT that does not fit into the memory of a rank under DistributedDataParallel trains under fully_shard(). Each rank has a memory
cgroup of its own (version 1 or 2), so this needs the right to make one: cgroup_limit.py <folder with the programs>"""
import json
import os
import pathlib
import subprocess
import sys
import time

RANKS = 4
MIB = 1 << 20
# AdamW in float32: DistributedDataParallel needs 16 bytes a parameter. Libraries and activations need the rest.
BYTES_PER_PARAMETER = 12
OTHER_BYTES = 128 * MIB
PARAMETERS = 12 * (12 * 512**2 + 13 * 512) + 1024 * 512 * 2 + 64 * 512  # of the net gpt_large, about
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # freed memory goes back to the kernel
SIDES = {"DistributedDataParallel": (["--mode", "ddp"], False),
         "fully_shard(), gathered": (["--mode", "gathered", "--backend", "gloo"], True),
         "fully_shard(), shared": (["--mode", "shared"], True)}


class Group:
    """A memory cgroup, removed at the end."""

    def __init__(self, name, limit):
        root, self.unified = find_root()
        self.folder = root / name
        self.folder.mkdir()
        self.write("memory.max" if self.unified else "memory.limit_in_bytes", limit)
        swap = self.folder / ("memory.swap.max" if self.unified else "memory.memsw.limit_in_bytes")
        if swap.exists():
            swap.write_text(str(0 if self.unified else limit))

    def write(self, file, value):
        (self.folder / file).write_text(str(value))

    def number(self, file):
        return int((self.folder / file).read_text())

    def peak(self):
        return self.number("memory.peak" if self.unified else "memory.max_usage_in_bytes")

    def kills(self):
        lines = (self.folder / ("memory.events" if self.unified else "memory.oom_control")).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self):
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.folder.rmdir()
            except OSError:  # the kernel has not ended all processes yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def find_root():
    """The folder of the memory controller, and whether it is version 2."""
    first, second = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
    if (first / "memory.limit_in_bytes").exists() and os.access(first, os.W_OK):
        return first, False
    controllers = second / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text().split() and os.access(second, os.W_OK):
        return second, True
    sys.exit("cgroup_limit.py: neither /sys/fs/cgroup/memory (version 1) nor /sys/fs/cgroup with the memory controller (version 2) "
             "is writable; run it as root, in a container with writable cgroups")


def train(programs, limit, arguments):
    """The exit code, output, peaks in bytes and kills of four ranks."""
    groups = []
    try:
        for rank in range(RANKS):
            groups.append(Group(f"lockstep-{os.getpid()}-{rank}", limit))
        enter = f'echo $$ > {groups[0].folder.parent}/lockstep-{os.getpid()}-"$RANK"/cgroup.procs && exec "$@"'
        done = subprocess.run([programs / "lockstep", "run", "--nproc-per-node", str(RANKS), "sh", "-c", enter, "sh",
                               programs / "benchmark", "sharded_step", "--net", "gpt_large", "--steps", "2", *arguments],
                              env=os.environ | ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)
        return done.returncode, done.stdout, max(group.peak() for group in groups), sum(group.kills() for group in groups)
    finally:
        for group in groups:
            group.close()


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    limit = (BYTES_PER_PARAMETER * PARAMETERS + OTHER_BYTES) // MIB * MIB
    print(f"{RANKS} ranks, {PARAMETERS / 1e6:.1f} million parameters, {limit // MIB} MiB a rank")
    failed = False
    for side, (arguments, fits) in SIDES.items():
        code, output, peak, kills = train(programs, limit, arguments)
        trained = code == 0 and kills == 0
        loss = ", loss {:.6f}".format(json.loads(output[output.index("{"):output.rindex("}") + 1])["loss"]) if trained else ""
        print(f"{side:26}{'trained' if trained else f'ended with {code}, {kills} ranks killed by the kernel'}, peak of a rank "
              f"{peak / MIB:.0f} MiB{loss}", flush=True)
        if trained != fits or (not fits and kills == 0 and "memory" not in output):
            failed = True
            print(output, file=sys.stderr)
    sys.exit("cgroup_limit.py: failed" if failed else 0)


if __name__ == "__main__":
    main()
