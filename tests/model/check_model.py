# SPDX-License-Identifier: BSD-3-Clause
"""Has Spin check the model of the shared-memory protocol, and that it finds faults put into it.

check_model.py <spin> <C compiler> <shm-protocol.pml>"""
import pathlib
import subprocess
import sys
import tempfile

# Part of the model: how large it is made here. Larger ones take minutes.
PARTS = {"CALLS": 4, "CHUNKS": 3, "SENT": 4, "PARTS": 2}
# A fault, as one text for another, and the part that has to show it.
FAULTS = {
    "a buffer is used again too early": ("area[1].taken + STAGES > area[0].taken", "true", "SENT"),
    "no second look before sleeping": (":: ready -> skip", ":: false -> skip", "CALLS"),
    "a brief call that wakes nobody": ("ring()  /* for the post */", "skip", "CALLS"),
    "a slot is used again too early": ("posted < SLOTS ||", "true ||", "CALLS"),
    "a claim that is not atomic": ("atomic { part = area[owner].claimed; area[owner].claimed = part + 1 }",
                                   "part = area[owner].claimed; area[owner].claimed = part + 1", "PARTS"),
}


def errors_in(model, part, spin, compiler):
    """The number of errors that Spin finds, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pml"
        path.write_text(model)
        for command in ([spin, f"-D{part}={PARTS[part]}", "-a", path], [compiler, "-O2", "-DSAFETY", "-o", "pan", "pan.c"]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{command}: {done.stdout}{done.stderr}")
        output = subprocess.run(["./pan", "-m200000"], cwd=folder, capture_output=True, text=True).stdout
    return int(output.split("errors:")[1].split()[0]), output


def main():
    spin, compiler, path = sys.argv[1:]
    model = pathlib.Path(path).read_text()
    failures = []
    for part in PARTS:
        count, output = errors_in(model, part, spin, compiler)
        print(f"{part}: {count} errors")
        if count or "Search not completed" in output:
            failures.append(f"{part}:\n{output}")
    for name, (text, fault, part) in FAULTS.items():
        if text not in model:
            failures.append(f"{name}: the model has no {text!r} any more")
        elif not errors_in(model.replace(text, fault), part, spin, compiler)[0]:
            failures.append(f"{name}: not found")
        else:
            print(f"{name}: found")
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
