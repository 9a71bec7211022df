# SPDX-License-Identifier: BSD-3-Clause
"""Checks the models of the shared-memory protocol with Spin, and checks that Spin finds faults inserted into them.

check_model.py <spin> <C compiler> <folder of the models>"""
import pathlib
import subprocess
import sys
import tempfile

# Part of a model: its file, and how large it is made here. Larger ones take minutes.
PARTS = {
    "CALLS": ("shm-protocol.pml", 4),
    "CHUNKS": ("shm-protocol.pml", 3),
    "SENT": ("shm-protocol.pml", 4),
    "PARTS": ("shm-protocol.pml", 2),
    "READS": ("shm-protocol.pml", 3),
    "MESSAGES": ("shm-messages.pml", 3),
}
# Spin's words for an assertion that fails, and for a deadlock.
WRONG = "assertion violated"
STUCK = "invalid end state"
# A fault, as one text for another, the part that has to show it, and how.
FAULTS = {
    "a buffer is used again too early": ("area[1].taken + STAGES > area[0].taken", "true", "SENT", WRONG),
    "no second look before sleeping": (":: ready -> skip", ":: false -> skip", "CALLS", STUCK),
    "a brief call that wakes nobody": ("ring()  /* for the post */", "skip", "CALLS", STUCK),
    "a slot is used again too early": ("posted < SLOTS ||", "true ||", "CALLS", STUCK),
    "a claim that is not atomic": ("atomic { part = area[owner].claimed; area[owner].claimed = part + 1 }",
                                   "part = area[owner].claimed; area[owner].claimed = part + 1", "PARTS", STUCK),
    "an all-gather that ends before all have read": (":: await(area[OTHER].read >= n || failed)", ":: skip", "READS", WRONG),
    "a call of which another rank has read only the one before": ("await(area[OTHER].read >= n", "await(area[OTHER].read + 1 >= n", "READS", WRONG),
    "data of a rank that has given up": (":: failed -> break", ":: false -> break", "READS", WRONG),
    "one look for a message": (":: best != PLACES -> look_through()", ":: false -> skip", "MESSAGES", WRONG),
    "a receive that overtakes": (":: j == 1 && want[0] == wanted", ":: false", "MESSAGES", WRONG),
    "a message shown too early": ("data[place] = n;\n       atomic { posted[place] = true; posts = posts + 1 };",
                                  "atomic { posted[place] = true; posts = posts + 1 };\n       data[place] = n;", "MESSAGES", STUCK),
    "a next message that is not the oldest": ("count == last &&", "", "MESSAGES", WRONG),
    "no room made for a message": (":: best == PLACES && waiting == PLACES ->", ":: false ->", "MESSAGES", STUCK),
}


def errors_in(model, part, spin, compiler, optimization):
    """The number of errors that Spin finds, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pml"
        path.write_text(model)
        for command in ([spin, f"-D{part}={PARTS[part][1]}", "-a", path], [compiler, optimization, "-DSAFETY", "-o", "pan", "pan.c"]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{command}: {done.stdout}{done.stderr}")
        output = subprocess.run(["./pan", "-m200000"], cwd=folder, capture_output=True, text=True).stdout
    return int(output.split("errors:")[1].split()[0]), output


def main():
    spin, compiler, folder = sys.argv[1:]
    models = {part: (pathlib.Path(folder) / name).read_text() for part, (name, _) in PARTS.items()}
    failures = []
    for part, model in models.items():
        count, output = errors_in(model, part, spin, compiler, "-O1")
        print(f"{part}: {count} errors")
        if count or "Search not completed" in output:
            failures.append(f"{part}:\n{output}")
    for name, (text, fault, part, how) in FAULTS.items():
        if text not in models[part]:
            failures.append(f"{name}: the model has no {text!r} any more")
            continue
        count, output = errors_in(models[part].replace(text, fault), part, spin, compiler, "-O0")  # ends early
        if not count or f"pan:1: {how}" not in output:
            failures.append(f"{name}: not found:\n{output}")
        else:
            print(f"{name}: found")
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
