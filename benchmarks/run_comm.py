#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times collectives: Lockstep's shm beside Gloo (`lockstep bench`, in turns within one run) and beside Open MPI
(mpi/mpi_collectives.cpp, which measures in the same way; runs of the two take turns). Prints the README's tables."""
import argparse
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

import bench_support as bench
import plot_comm

SIZES = {"1 KB": 1024, "64 KB": 65536, "1 MB": 1 << 20, "25 MB": 25 << 20, "100 MB": 100 << 20}
OTHERS = "all-gather,reduce-scatter,broadcast,reduce,gather,scatter,all-to-all,send-recv,barrier"
OWN = "shm inplace", "shm ordinary"


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns; the median of their medians counts")
    parser.add_argument("--quick", action="store_true", help="one turn of the all-reduce between two ranks")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that one run may take")
    parser.add_argument("--plot", type=pathlib.Path, help="write the all-reduce as an SVG picture there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def rows_of(output):
    """{(collective, bytes, who): microseconds} from CSV lines."""
    lines = [line for line in output.splitlines() if line.count(",") == 12]
    names = "collective,bytes,count,dtype,op,backend,memory,microseconds,p10,p90,algbw,busbw,wrong".split(",")
    rows = {}
    for row in csv.DictReader((line for line in lines if not line.startswith("collective,")), names):
        if row["wrong"] not in ("0", "-1"):
            sys.exit(f"wrong results: {row}")
        who = {"mpi": "mpi", "gloo": "gloo", "memory": "memory"}.get(row["backend"], f"shm {row['memory']}")
        rows[row["collective"], int(row["bytes"]), who] = float(row["microseconds"])
    return rows


def own(collectives, sizes, ranks, backends, timeout):
    return rows_of(bench.finished(
        [bench.program("lockstep"), "bench", "--nproc", str(ranks), collectives, "--backend", backends, "--sizes",
         ",".join(map(str, sizes)), "--csv"], timeout))


def mpi(collectives, sizes, ranks, timeout):
    """Nothing where there is no Open MPI."""
    if shutil.which("mpirun") is None or not (bench.BUILD / "bin" / "mpi_collectives").exists():
        return {}
    binding = ["--bind-to", "core"] if ranks == 2 else ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    done = subprocess.run(["mpirun", "--allow-run-as-root", *binding, "-n", str(ranks), bench.program("mpi_collectives"),
                           collectives, ",".join(map(str, sizes))], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        sys.exit(f"mpirun: {done.stdout}{done.stderr}")
    return rows_of(done.stdout)


def measure(collectives, sizes, ranks, backends, flags):
    rounds = []
    for _ in range(1 if flags.quick else flags.rounds):
        rounds.append(own(collectives, sizes, ranks, backends, flags.timeout) | mpi(collectives, sizes, ranks, flags.timeout))
    return {key: statistics.median(rows[key] for rows in rounds) for key in rounds[0]}


def time_text(microseconds):
    return f"{microseconds / 1000:.2f} ms" if microseconds >= 1000 else f"{microseconds:.2f} us"


def print_all_reduce(rows):
    columns = [who for who in ("gloo", "mpi", *OWN, "memory") if ("all-reduce", 1024, who) in rows]
    print(f"{'all-reduce, f32':18}" + "".join(f"{who:>14}" for who in columns) + f"{'gloo/inplace':>15}"
          + (f"{'mpi/inplace':>14}{'mpi/ordinary':>14}" if "mpi" in columns else ""))
    for name, size in SIZES.items():
        if ("all-reduce", size, OWN[0]) not in rows:
            continue
        line = {who: rows["all-reduce", size, who] for who in columns}
        text = f"{name:18}" + "".join(f"{time_text(line[who]):>14}" for who in columns)
        text += f"{line['gloo'] / line[OWN[0]]:14.1f}x"
        if "mpi" in line:
            text += f"{line['mpi'] / line[OWN[0]]:13.1f}x{line['mpi'] / line[OWN[1]]:13.1f}x"
        print(text)
    limit = rows["all-reduce", SIZES["25 MB"], OWN[0]] / rows["all-reduce", SIZES["25 MB"], "memory"]
    print(f"25 MB in place/the memory's limit: {bench.goal(limit, 1.3)}\n")


def print_against(title, rows):
    """Every collective beside the faster of the others."""
    print(f"{title:34}{'shm':>12}{'gloo':>12}{'Open MPI':>12}{'shm/best':>10}")
    for collective, size, who in sorted(rows):
        if who != OWN[1]:
            continue
        line = {other: rows[collective, size, other] for other in ("gloo", "mpi") if (collective, size, other) in rows}
        if line:
            texts = "".join(f"{time_text(line[o]) if o in line else '':>12}" for o in ("gloo", "mpi"))
            mine = rows[collective, size, who]
            print(f"{collective:18}{size:>14} B{time_text(mine):>12}{texts}{mine / min(line.values()):10.2f}")
    print()


def main():
    flags = parse_flags()
    sizes = list(SIZES.values())
    two = measure("all-reduce", sizes, 2, "shm,gloo,memory", flags)
    results = {"all_reduce_2_ranks": two}
    if not flags.quick:
        results["all_reduce_8_ranks"] = measure("all-reduce", sizes[:4], 8, "shm", flags)
        results["others_2_ranks"] = measure(OTHERS, sizes[1:4], 2, "shm,gloo", flags)
    if flags.plot:
        flags.plot.write_text(plot_comm.svg(two))
    if flags.json:
        print(json.dumps({name: [[*key, value] for key, value in rows.items()] for name, rows in results.items()}))
        return
    print_all_reduce(two)
    if not flags.quick:
        print_against("all-reduce, 8 ranks on few cores", results["all_reduce_8_ranks"])
        print_against("other collectives, 2 ranks", results["others_2_ranks"])
    if not any(who == "mpi" for _, _, who in two):
        print("Open MPI is not installed (Debian: libopenmpi-dev openmpi-bin); build again with it to have it beside.")


if __name__ == "__main__":
    main()
