#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs library, launcher, doctor and tools under each limit of the system, beside the table of docs/limits.md:

    limits.py <folder with the programs> <docs/limits.md> [row...]

A cell says "works" or "fails", with messages in quotation marks, in which "..." stands for anything. Needs root."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import under

COLUMNS = ("library", "lockstep run", "lockstep doctor", "lockstep bench", "lockstep ckpt show", "lockstep plan --measure")
TIMEOUT = 60
# A user of its own, so that no other process counts towards its limit.
USER = ["setpriv", "--reuid", "64999", "--regid", "64999", "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all"]
UNDER = [sys.executable, under.__file__]
CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Text of others, which only a cell that quotes it allows.
RAW = ("terminate called", "what():", "filesystem error", "std::", "c10::Error", "Exception raised from", "SIGSEGV", "SIGABRT",
       "Error in cpuinfo", "recursive_init_error", "[enforce fail", "failed to map segment")


def mounts(script):
    return ["unshare", "-m", "sh", "-c", f'mount --make-rprivate / && {script} && exec "$@"', "sh"]


def cgroup(controller, first, second):
    """Runs in a group of its own. `first` and `second`: the settings for versions 1 and 2."""
    one = CGROUPS / controller
    root, settings = (one, first) if (one / "cgroup.procs").exists() else (CGROUPS, second)
    folder = root / f"lockstep-limits-{os.getpid()}-{controller}"
    enable = "true" if root == one else f"echo +{controller} > {root}/cgroup.subtree_control"
    writes = " && ".join(f"echo {value} > {folder}/{file}" for file, value in settings.items())
    return ["sh", "-c", f'{enable} && mkdir -p {folder} && {writes} && echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]


def remove_cgroups():
    for folder in [*CGROUPS.glob(f"lockstep-limits-{os.getpid()}-*"), *CGROUPS.glob(f"*/lockstep-limits-{os.getpid()}-*")]:
        with contextlib.suppress(OSError):
            folder.rmdir()


def rows():
    """[name in the table]: the command that sets the limit."""
    full = "mount -t tmpfs -o size=64k none /tmp && (head -c 100000 /dev/zero > /tmp/filler 2>/dev/null || true)"
    return {
        "`ulimit -f`: 1 MB": ["prlimit", "--fsize=1000000"],
        "`ulimit -f`: 20 GB": ["prlimit", "--fsize=20000000000"],
        "`ulimit -v`: 300 MB": ["prlimit", "--as=300000000"],
        "`ulimit -v`: 4 GB": ["prlimit", "--as=4000000000"],
        "`ulimit -n`: 10": ["prlimit", "--nofile=10"],
        "`ulimit -n`: 64": ["prlimit", "--nofile=64"],
        "`ulimit -l`: 0": ["prlimit", "--memlock=0"],
        "`ulimit -s`: 64 KiB": ["prlimit", "--stack=65536"],
        "`ulimit -s`: unlimited": ["prlimit", "--stack=unlimited"],
        "`ulimit -u`: 2": USER + ["prlimit", "--nproc=2"],
        "`ulimit -t`: 60 s": ["prlimit", "--cpu=60"],
        "cgroup: 5 processes": cgroup("pids", {"pids.max": 5}, {"pids.max": 5}),
        "cgroup: 10 processes": cgroup("pids", {"pids.max": 10}, {"pids.max": 10}),
        "cgroup: 400 MiB": cgroup("memory", {"memory.limit_in_bytes": 400 << 20}, {"memory.max": 400 << 20}),
        "cgroup: half a core": cgroup("cpu", {"cpu.cfs_quota_us": 50000}, {"cpu.max": '"50000 100000"'}),
        "`/dev/shm` of 64 KiB": mounts("mount -t tmpfs -o size=64k none /dev/shm"),
        "`/dev/shm` read-only": mounts("mount -t tmpfs -o ro none /dev/shm"),
        "root read-only": mounts("mount -t tmpfs -o ro none /tmp && mount -o remount,bind,ro /"),
        "no `HOME`": ["env", "-u", "HOME"],
        "`TMPDIR` does not exist": ["env", "TMPDIR=/nonexistent"],
        "disk of `/tmp` full": mounts(full),
        "stdout on a full disk": ["sh", "-c", 'exec "$@" > /dev/full', "sh"],
        "no `/proc`": mounts("umount -l /proc"),
        "no `/sys`": mounts("umount -R -l /sys"),
        "no loopback interface": ["unshare", "-n"],
        "no `process_vm_readv`": UNDER + ["process_vm_readv"],
        "no `memfd_create`": UNDER + ["memfd_create"],
        "no `pidfd_open`": UNDER + ["pidfd_open"],
        "no user namespaces": UNDER + ["unshare"],
    }


def proof(name, prefix):
    """A command that succeeds under the limit `name`, which `prefix` sets, and fails without it."""
    if prefix[:-1] == UNDER:
        refused = under.NUMBERS[os.uname().machine][prefix[-1]]
        return [sys.executable, "-c", "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
                f"sys.exit(libc.syscall({refused}, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1)"]
    if name == "no loopback interface":
        return [sys.executable, "-c", "import errno, socket, sys; "
                "sys.exit(socket.socket().connect_ex(('127.0.0.1', 1)) != errno.ENETUNREACH)"]
    if prefix[-1].startswith("--"):
        resource, value = prefix[-1].removeprefix("--").split("=")
        line = {"fsize": "file size", "as": "address space", "nofile": "open files", "memlock": "locked memory",
                "stack": "stack size", "nproc": "processes", "cpu": "cpu time"}[resource]
        return ["grep", "-Eq", f"^Max {line} +{value} ", "/proc/self/limits"]
    written = "head -c 100000 /dev/zero > {0} 2>/dev/null; state=$?; rm -f {0} 2>/dev/null; [ $state != 0 ]"
    script = {"`/dev/shm` of 64 KiB": written.format("/dev/shm/lockstep-limits"),
              "`/dev/shm` read-only": written.format("/dev/shm/lockstep-limits"),
              "root read-only": written.format("/var/tmp/lockstep-limits"),
              "no `HOME`": '[ -z "$HOME" ]',
              "`TMPDIR` does not exist": '[ ! -e "${TMPDIR-/tmp}" ]',
              "disk of `/tmp` full": written.format("/tmp/lockstep-limits"),
              "stdout on a full disk": "! echo x 2>/dev/null",
              "no `/proc`": "[ ! -e /proc/self ]",
              "no `/sys`": "[ ! -e /sys/kernel ]"}.get(name, f"grep -q lockstep-limits-{os.getpid()} /proc/self/cgroup")
    return ["sh", "-c", script]


def table_of(page):
    """[row]: its cells, as in COLUMNS."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    start = next((i for i, line in enumerate(cells) if tuple(cell.strip("`") for cell in line[1:]) == COLUMNS), None)
    if start is None:
        sys.exit(f"{page}: no table has the columns {COLUMNS}")
    return {line[0]: line[1:] for line in cells[start + 2:] if len(line) == len(COLUMNS) + 1}


def run(*commands):
    """Runs all of them, until one fails. The first exit code that is not 0, None if they had to be stopped, and their output."""
    with contextlib.ExitStack() as files:
        running, deadline = [], time.monotonic() + TIMEOUT
        for words, environment in commands:
            output = files.enter_context(tempfile.TemporaryFile(dir="/var/tmp"))
            running.append((subprocess.Popen([str(word) for word in words], env=os.environ | environment, stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=output, start_new_session=True), output))
        while not any(process.poll() for process, _ in running) and any(process.poll() is None for process, _ in running):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        failed = [process.returncode for process, _ in running if process.returncode]
        stopped = any(process.returncode is None for process, _ in running)
        code = failed[0] if failed else None if stopped else 0
        text = ""
        for process, output in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            text += output.read().decode(errors="replace")
        return code, text


class Programs:
    def __init__(self, folder, work):
        self.folder = folder
        self.checkpoint = work / "checkpoint.pt"
        subprocess.run([sys.executable, "-c", "import sys, torch; torch.save({'a': torch.ones(1000)}, sys.argv[1])",
                        self.checkpoint], check=True)
        self.checkpoint.chmod(0o644)

    def library(self, prefix):
        """Two processes that find each other by env://. The second one waits for the first, so it is ended with it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return run(*(([*prefix, self.folder / "01_hello_allreduce"],
                      {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}) for rank in range(2)))

    def cell(self, column, prefix):
        """The exit code and output of a cell's program."""
        if column == "library":
            return self.library(prefix)
        words = {"lockstep run": ["run", "--nproc-per-node", "2", "--tee", "3", self.folder / "01_hello_allreduce"],
                 "lockstep doctor": ["doctor"],
                 "lockstep bench": ["bench", "all-reduce", "--sizes", "4K", "--iterations", "3"],
                 "lockstep ckpt show": ["ckpt", "show", self.checkpoint],
                 "lockstep plan --measure": ["plan", "--measure", "/dev/null"]}
        return run(([*prefix, self.folder / "lockstep", *words[column]], {}))


def flat(text):
    return re.sub(r"\s+", " ", text)


def findings(output):
    """The warnings and problems of the doctor."""
    return {flat(line) for line in output.splitlines() if line.startswith(("warning", "problem"))}


def complaints(cell, code, output, known):
    """What is not as the cell says. `known`: what the doctor says without a limit."""
    found = [f"raw text: {each}" for each in RAW if each in output and each not in cell]
    patterns = []
    for message in re.findall(r'"([^"]*)"', cell):
        patterns.append(".*".join(re.escape(flat(part)) for part in message.split("...")))
        if not re.search(patterns[-1], flat(output)):
            found.append(f"missing: {message}")
    if known is not None:
        found += [f"not in the cell: {line}" for line in sorted(findings(output) - known)
                  if not any(re.search(pattern, line) for pattern in patterns)]
    outcome = "hangs" if code is None else "fails" if code else "works"
    return found + ([] if cell.startswith(outcome) else [f"it {outcome}"])


def main():
    page, chosen = pathlib.Path(sys.argv[2]), sys.argv[3:]
    table, known = table_of(page), rows()
    if list(table) != list(known):
        sys.exit(f"{page}: its rows are not those of limits.py: {sorted(set(table) ^ set(known)) or 'other order'}")
    if os.geteuid() != 0:
        sys.exit("limits.py: run it as root, to set all limits")
    failed = ran = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:  # not /tmp, which a row fills
        os.chmod(work, 0o755)
        programs = Programs(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(work))
        usual = findings(programs.cell("lockstep doctor", [])[1])
        for name, prefix in known.items():
            if chosen and name not in chosen:
                continue
            in_force, without = run(([*prefix, *proof(name, prefix)], {}))[0], run((proof(name, prefix), {}))[0]
            if in_force != 0 or without == 0:
                failed += 1
                print(f"FAILED  {name}: the limit is not in force")
            for column, cell in zip(COLUMNS, table[name]):
                began = time.monotonic()
                code, output = programs.cell(column, prefix)
                wrong = complaints(cell, code, output, usual if column == "lockstep doctor" else None)
                ran += 1
                print(f"{'FAILED' if wrong else 'ok':8}{name}, {column} ({time.monotonic() - began:.1f} s)", flush=True)
                if wrong:
                    failed += 1
                    print(f"  expected: {cell}\n  " + "\n  ".join(wrong) + f"\n  exit code {code}, output:\n{output}", flush=True)
    remove_cgroups()
    print(f"{ran} cells, {failed} failed")
    sys.exit(1 if failed or ran == 0 else 0)


if __name__ == "__main__":
    main()
